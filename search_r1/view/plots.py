"""Pictures of a run from its metrics file."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

SCORES: dict[str, tuple[str, ...]] = {
    "training reward": ("tree/reward_mean", "critic/score/mean", "reward"),
    "training EM": ("tree/em", "em"),
}
"""Lines of the upper panel: the first of these keys that a run logged."""

TOKENS: tuple[str, ...] = ("tree/generated_tokens", "perf/total_num_tokens", "tokens")
"""Tokens per step, for the lower panel: the first of these keys that a run logged."""

VALIDATION_EM = re.compile(r"val-tree/(?P<source>.+)/em")
"""Validation EM of one data source, or of a subset of one."""

Series = tuple[list[float], list[float]]


def learning_curve(metrics: str | Path | Iterable[Mapping[str, Any]], out_png: str | Path) -> None:
    """Draw reward and EM against the step, and tokens per step below, into a PNG file.

    ``metrics`` is a JSONL file or its rows, either flat (``{"step": 1, "reward": 0.3}``) or as
    verl's file logger writes them (``{"step": 1, "data": {...}}``). Validation EM of every data
    source (``val-tree/SOURCE/em``) gets a line of its own. Raises ValueError where no row
    holds a known metric.
    """
    rows = list(read_rows(metrics) if isinstance(metrics, str | Path) else map(_flatten, metrics))
    scores = {name: _first_series(rows, keys) for name, keys in SCORES.items()}
    scores |= {f"validation EM, {source}": _series(rows, key) for key, source in _validations(rows)}
    scores = {name: series for name, series in scores.items() if series[0]}
    tokens = _first_series(rows, TOKENS)
    if not scores and not tokens[0]:
        known = ", ".join(key for keys in SCORES.values() for key in keys)
        raise ValueError(
            f"nothing to draw in {len(rows)} rows: expected a step and one of {known}, "
            f"val-tree/SOURCE/em, {', '.join(TOKENS)}"
        )
    _draw(scores, tokens, out_png)


def read_rows(path: str | Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a metrics file, flattened; ValueError names file and line of a bad one."""
    with Path(path).open(encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError as error:
                raise ValueError(f"{path}:{number}: not a JSON line ({error})") from error
            if not isinstance(row, dict) or "step" not in row:
                raise ValueError(f"{path}:{number}: expected an object with a 'step', got {row!r}")
            yield _flatten(cast("dict[str, Any]", row))


def _flatten(row: Mapping[str, Any]) -> dict[str, Any]:
    return dict(row) | dict(cast("Mapping[str, Any]", row.get("data", {})))


def _series(rows: list[dict[str, Any]], key: str) -> Series:
    points = sorted((row["step"], row[key]) for row in rows if row.get(key) is not None)
    return [step for step, _ in points], [value for _, value in points]


def _first_series(rows: list[dict[str, Any]], keys: tuple[str, ...]) -> Series:
    for key in keys:
        series = _series(rows, key)
        if series[0]:
            return series
    return [], []


def _validations(rows: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """(key, data source) of every validation EM in the rows."""
    found = ((key, VALIDATION_EM.fullmatch(key)) for key in {key for row in rows for key in row})
    return sorted((key, match["source"]) for key, match in found if match is not None)


def _draw(scores: dict[str, Series], tokens: Series, out_png: str | Path) -> None:
    # Figure without pyplot: no display, no global state, the Agg canvas by default.
    from matplotlib.figure import Figure

    figure: Any = Figure(figsize=(7, 6), layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True)
    for name, (steps, values) in scores.items():
        upper.plot(steps, values, label=name, marker="." if len(steps) < 30 else None)
    upper.set_ylabel("reward, EM")
    if scores:
        upper.legend(loc="best", fontsize="small")
    lower.plot(*tokens, color="tab:gray", marker="." if len(tokens[0]) < 30 else None)
    lower.set_ylabel("tokens per step")
    lower.set_xlabel("training step")
    for axis in (upper, lower):
        axis.grid(alpha=0.3)
    figure.savefig(str(out_png), dpi=150)
