"""Build an index directory: normalised corpus, index files, manifest; whole or not at all."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from retrieval_server.backends import BACKENDS
from retrieval_server.corpus import Corpus, dump_row, read_rows
from retrieval_server.encoder import Encoder
from retrieval_server.manifest import CORPUS, FILE, FORMAT, EncoderFacts, Manifest


def build_index(
    corpus_path: Path,
    out: Path,
    *,
    backend: str = "faiss",
    encoder: Encoder | None = None,
    overwrite: bool = False,
) -> Manifest:
    """Index ``corpus_path`` into the directory ``out``, which appears only when it is complete.

    Raises ValueError for a faulty corpus (with line number) and for an ``out`` that exists, unless
    it is an index and ``overwrite`` is set.
    """
    if backend not in BACKENDS:
        raise ValueError(f"got the backend {backend!r}, expected one of {', '.join(BACKENDS)}")
    kind = BACKENDS[backend]
    if kind.needs_encoder != (encoder is not None):
        needs = "needs an encoder" if kind.needs_encoder else "takes no encoder"
        raise ValueError(f"the backend {backend!r} {needs}")
    check_target(out, overwrite)
    with new_directory(out) as folder:
        rows, sha256 = write_corpus(corpus_path, folder / CORPUS)
        with progress("index", rows) as report:
            kind.build(Corpus(folder / CORPUS), folder, encoder, report)
        manifest = Manifest(
            backend=backend,
            index_type=kind.index_type,
            rows=rows,
            corpus_bytes=(folder / CORPUS).stat().st_size,
            corpus_sha256=sha256,
            encoder=None if encoder is None else EncoderFacts.of(encoder),
            format=FORMAT,
        )
        manifest.write(folder)
    return manifest


def check_target(out: Path, overwrite: bool) -> None:
    """ValueError where ``out`` must not be replaced."""
    if not out.exists():
        return
    if not (out / FILE).is_file():
        raise ValueError(f"{out} exists and is no index directory; name another --out")
    if not overwrite:
        raise ValueError(f"{out} already holds an index; name another --out, or add --overwrite")


def write_corpus(source: Path, target: Path) -> tuple[int, str]:
    """Copy the rows in normal form; their number and SHA-256. ValueError for a corpus of none."""
    digest, rows = hashlib.sha256(), 0
    with open(target, "wb") as file:
        for row in read_rows(source):
            line = dump_row(row)
            digest.update(line)
            file.write(line)
            rows += 1
    if rows == 0:
        raise ValueError(f"{source} has no rows; expected one JSON object a line")
    return rows, digest.hexdigest()


@contextmanager
def new_directory(out: Path) -> Generator[Path]:
    """A folder next to ``out`` that takes its place on success and is removed on failure."""
    out.parent.mkdir(parents=True, exist_ok=True)
    folder = out.with_name(f".{out.name}.building-{os.getpid()}")
    old = out.with_name(f".{out.name}.old-{os.getpid()}")
    folder.mkdir()
    try:
        yield folder
        if out.exists():
            out.rename(old)
        folder.rename(out)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        if old.exists() and not out.exists():
            old.rename(out)
        raise
    if old.exists():
        shutil.rmtree(old)


@contextmanager
def progress(label: str, total: int) -> Generator:
    """A progress bar on standard error; yields the function that sets the finished count."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    columns = ("{task.description}", BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(label, total=total)
        yield lambda done: bar.update(task, completed=done)
