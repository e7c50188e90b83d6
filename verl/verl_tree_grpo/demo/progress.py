"""Watching a training run from outside: its metrics file, its memory, a line per step."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import psutil


class Metrics:
    """Reads verl's metrics file as it grows. Earlier parts of a resumed run come first."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset = 0

    def new_rows(self) -> list[dict[str, Any]]:
        """Complete rows that were written since the last call."""
        if not self.path.exists():
            return []
        if self.path.stat().st_size < self._offset:
            self._offset = 0
        with self.path.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        return [json.loads(line) for line in whole.splitlines() if line.strip()]


def read_metrics(path: Path) -> dict[int, dict[str, Any]]:
    """Step -> metrics of a run, over all its parts (``metrics.1.jsonl``, ..., ``metrics.jsonl``).

    A step that was trained twice, before and after a resume, counts as it was trained last.
    """
    parts = sorted(path.parent.glob(f"{path.stem}.*{path.suffix}"), key=_part_number)
    rows: dict[int, dict[str, Any]] = {}
    for part in [*parts, path]:
        for row in Metrics(part).new_rows():
            rows.setdefault(int(row["step"]), {}).update(row["data"])
    return dict(sorted(rows.items()))


def _part_number(path: Path) -> int:
    return int(path.suffixes[-2].lstrip("."))


def watch(process: subprocess.Popen[bytes], metrics: Metrics) -> int:
    """Print a line per training step and per validation until the process ends; its exit code."""
    started = last_line = time.time()
    while True:
        ended = process.poll()
        for row in metrics.new_rows():
            print(describe(int(row["step"]), row["data"], time.time() - started), flush=True)
            last_line = time.time()
        if ended is not None:
            return ended
        if time.time() - last_line > 20:
            print(f"  ... {time.time() - started:.0f} s", flush=True)
            last_line = time.time()
        time.sleep(0.5)


def describe(step: int, data: dict[str, Any], seconds: float) -> str:
    """One line about one step."""
    parts = [f"  {seconds:5.0f} s  step {step:3d}"]
    if "tree/reward_mean" in data:
        parts += [
            f"reward {data['tree/reward_mean']:.2f}",
            f"EM {data['tree/em']:.2f}",
            f"mixed prompts {data['tree/mixed_prompts']:.0%}",
            f"{data['tree/generated_tokens'] / 1000:.1f}k tokens",
            f"{data['tree/tool_calls']:.0f} searches",
            f"cache {data['tree/served_block_fraction']:.0%}",
            f"{data.get('timing_s/step', 0):.1f} s",
        ]
    held_out = [
        v
        for k, v in data.items()
        if k.startswith("val-tree/") and k.count("/") == 2 and k.endswith("/em")
    ]
    if held_out:
        parts.append(f"held-out EM {held_out[0]:.1%}")
    return "  ".join(parts)


class MemoryWatch:
    """Samples the resident memory of this process and all its descendants.

    ``peak_gib`` adds up resident sets, so pages that processes share count once for each.
    """

    def __init__(self, every_s: float = 2.0) -> None:
        self.peak_gib = 0.0
        self._every_s = every_s
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> MemoryWatch:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._done.set()
        self._thread.join()

    def _sample(self) -> None:
        me = psutil.Process()
        while not self._done.wait(self._every_s):
            total = 0
            for process in [me, *me.children(recursive=True)]:
                try:
                    total += process.memory_info().rss
                except psutil.NoSuchProcess:
                    continue
            self.peak_gib = max(self.peak_gib, total / 2**30)
