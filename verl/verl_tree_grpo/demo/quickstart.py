"""``scripts/quickstart.sh``: the whole loop on one small machine, with progress, in minutes.

Data, index, retrieval server, training and validation, report. Everything is the real thing:
upstream verl and vLLM, FSDP2, a FAISS index over a sentence encoder; only model and task are small.
A second run reuses data and index; an interrupted one resumes from its last checkpoint.

    python -m verl_tree_grpo.demo.quickstart --out outputs/quickstart tree.seed=2
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from search_r1.retrieval import probe
from verl_tree_grpo.demo.progress import MemoryWatch, Metrics, watch
from verl_tree_grpo.demo.report import write_report

DATA = Path("outputs/data/geohop")
INDEX = Path("outputs/index/geohop")
CITIES, TRAIN, TEST, DATA_SEED = 2800, 4000, 240, 1
"""Size of GeoHop in the quickstart: cities in the corpus, train and test questions, seed."""
SMOLLM2, SMOLLM2_WARM_MINUTES = "smollm2", 8.0
"""``MODEL=smollm2`` runs SmolLM2-135M-Instruct after this many minutes of supervised traces."""
STOP_S = 30.0
"""How long a process may take to end by itself before it is killed, seconds."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the quickstart; hydra overrides follow the options. 0 on success."""
    parser = argparse.ArgumentParser(prog="quickstart", description="Tree-GRPO end to end, small")
    parser.add_argument("--out", type=Path, default=Path("outputs/quickstart"))
    parser.add_argument("--model", default=os.environ.get("MODEL", "geohop_tiny"))
    parser.add_argument("--port", type=int, default=0, help="of the server; 0 takes a free one")
    args, overrides = parser.parse_known_args(argv)
    began = time.time() - float(os.environ.get("QUICKSTART_SETUP_S", 0))
    args.out.mkdir(parents=True, exist_ok=True)
    # Said out loud, since a shell starts background jobs with SIGINT ignored.
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, _interrupt)
    try:
        prepare(args.model)
        ready = time.time()
        memory = MemoryWatch()
        with memory, retrieval_server(args.port or free_port(), args.out / "server.log") as url:
            train(args.out, args.model, url, overrides)
    except KeyboardInterrupt:
        print("\nquickstart: stopped; the same command resumes from the last checkpoint")
        return 130
    except (subprocess.CalledProcessError, ValueError, RuntimeError) as error:
        print(f"quickstart: {error}", file=sys.stderr)
        return 1
    write_report(
        args.out,
        seconds_setup=ready - began,
        seconds_train=time.time() - ready,
        peak_rss_gib=memory.peak_gib,
    )
    return 0


def _interrupt(signum: int, frame: object) -> None:
    raise KeyboardInterrupt


def prepare(model: str) -> None:
    """Data, index and model, each only where it is missing."""
    if not (DATA / "stats.json").exists():
        say(f"writing GeoHop: {CITIES} cities, {TRAIN} train and {TEST} test questions -> {DATA}")
        from search_r1.data import geohop

        geohop.build(
            DATA, num_cities=CITIES, num_train=TRAIN, num_test=TEST, seed=DATA_SEED, template="bare"
        )
    if not (INDEX / "manifest.json").exists():
        say(f"building the FAISS index -> {INDEX}")
        run_cli("index", "--corpus", str(DATA / "corpus.jsonl"), "--out", str(INDEX))
    if model == SMOLLM2:
        from verl_tree_grpo.demo import smollm2

        smollm2.ensure_warm(Path("outputs/models/smollm2_geohop"), SMOLLM2_WARM_MINUTES)


def run_cli(*arguments: str) -> None:
    """Run ``tree-grpo`` in a process of its own; its output passes through."""
    subprocess.run([sys.executable, "-m", "search_r1", *arguments], check=True)


@contextmanager
def retrieval_server(port: int, log: Path) -> Iterator[str]:
    """A server over the index, healthy on entry, stopped on exit; yields its URL."""
    say(f"starting the retrieval server on port {port} (log: {log})")
    url = f"http://127.0.0.1:{port}"
    command = ["serve", "--index", str(INDEX), "--port", str(port), "--topk", "3"]
    with start(command, log) as server:
        deadline = time.time() + 120
        while True:
            if server.poll() is not None:
                raise RuntimeError(
                    f"the retrieval server ended at once; its log says:\n{tail(log)}"
                )
            try:
                probe(url, timeout_s=2.0, loading_s=120.0)
                break
            except Exception as error:
                if time.time() > deadline:
                    raise RuntimeError(f"no healthy server after 120 s: {error}") from error
                time.sleep(0.3)
        yield url


def train(out: Path, model: str, url: str, overrides: Sequence[str]) -> None:
    """Run ``tree-grpo train`` and show its progress until it ends.

    A finished earlier run is moved aside; an unfinished one is resumed.
    """
    if (out / "summary.json").exists():
        for name in ("checkpoints", "metrics.jsonl", "forests.jsonl", "train.log", "summary.json"):
            archive(out, name)
    log = out / "train.log"
    choices = ["task=geohop", "machine=cpu", "algorithm=tree_grpo", "budget=4"]
    if model == SMOLLM2:
        choices += ["model=smollm2_135m", "+experiment=[quickstart,quickstart_smollm2]"]
    else:
        choices += [f"model={model}", "+experiment=quickstart"]
    paths = [
        f"tree.record={out / 'forests.jsonl'}",
        f"trainer.default_local_dir={out / 'checkpoints'}",
        f"tree.retriever_url={url}",
    ]
    command = ["train", *choices, *paths, *overrides]
    say(f"training (log: {log}); the first step comes after about a minute of start-up")
    with start(command, log) as trainer:
        code = watch(trainer, Metrics(out / "metrics.jsonl"))
    if code != 0:
        raise RuntimeError(f"training ended with exit code {code}; its log says:\n{tail(log)}")


def archive(out: Path, name: str) -> None:
    """Move a result of the last finished run into ``previous/``, replacing the one before."""
    source, target = out / name, out / "previous" / name
    if not source.exists():
        return
    target.parent.mkdir(exist_ok=True)
    if target.is_dir():
        shutil.rmtree(target)
    source.replace(target)


@contextmanager
def start(arguments: Sequence[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """``tree-grpo`` in its own process group, ended with everything it started."""
    with log.open("ab") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "search_r1", *arguments],
            stdout=file,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            env=os.environ | {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"},
        )
    try:
        yield process
    finally:
        stop(process)


def stop(process: subprocess.Popen[bytes]) -> None:
    """Interrupt a process group, then kill what is left of it."""
    for sign in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        if process.poll() is not None:
            return
        os.killpg(process.pid, sign)
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            continue


def free_port() -> int:
    """A loopback port nobody listens on."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def tail(log: Path, lines: int = 25) -> str:
    """The last lines of a log file."""
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])


def say(text: str) -> None:
    """One line of progress."""
    print(f"quickstart: {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
