"""A corpus: JSON lines of passages, checked while they stream in, then read by row number.

A row is ``{"id", "contents"}`` with contents = quoted title, newline, text; a row with ``title``
and ``text`` is accepted and turned into that. Other keys stay. The fingerprint of a corpus is the
SHA-256 of its normalised rows, so it is the same for a file and its gzip.
"""

from __future__ import annotations

import gzip
import json
import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from search_r1.wire import clean_text, join_contents

BOM = b"\xef\xbb\xbf"
GZIP = b"\x1f\x8b"
Row = dict[str, Any]


def parse_row(line: bytes, where: str) -> Row:
    """A checked row from one line; ValueError names ``where`` the fault is."""
    try:
        row = json.loads(line)
    except ValueError as error:  # UnicodeDecodeError is one
        raise ValueError(f"{where}: not a line of JSON ({error})") from error
    if not isinstance(row, dict):
        raise ValueError(f"{where}: got {type(row).__name__}, expected an object")
    if "contents" not in row and "text" in row:
        row["contents"] = join_contents(row.pop("title", None) or "", row.pop("text"))
    for key, kinds in (("id", (str, int)), ("contents", (str,))):
        if not isinstance(row.get(key), kinds) or isinstance(row[key], bool):
            raise ValueError(
                f"{where}: got {key}={row.get(key)!r:.60}, expected a string; a row needs "
                '"id" and "contents", or "id", "title" and "text"'
            )
    contents = clean_text(row.pop("contents"))
    if not contents.strip():
        raise ValueError(f"{where}: contents is empty; leave the row out")
    return {"id": clean_text(str(row.pop("id"))), "contents": contents, **row}


def read_rows(path: Path) -> Iterator[Row]:
    """Stream the rows of a JSONL or gzipped JSONL file; ValueError with the line number of a fault.

    Blank lines and a byte-order mark are skipped; a repeated id is an error.
    """
    first_seen: dict[str, int] = {}
    with open(path, "rb") as raw:
        zipped = raw.read(2) == GZIP
    with gzip.open(path) if zipped else open(path, "rb") as lines:
        for number, line in enumerate(lines, start=1):
            line = line.removeprefix(BOM) if number == 1 else line
            if not line.strip():
                continue
            row = parse_row(line, f"{path}, line {number}")
            first = first_seen.setdefault(row["id"], number)
            if first != number:
                raise ValueError(
                    f"{path}, line {number}: the id {row['id']!r} is taken by line {first}; "
                    "ids must be unique"
                )
            yield row


def dump_row(row: Row) -> bytes:
    """A row as one normalised line."""
    return json.dumps(row, ensure_ascii=False).encode("utf-8", "replace") + b"\n"


class Corpus:
    """Random access to the rows of a plain JSONL file, memory-mapped; safe in threads.

    Rows are checked when they are read. ``starts`` has shape (rows,): byte offsets.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with open(path, "rb") as file:
            if file.read(2) == GZIP:
                raise ValueError(
                    f"{path} is gzipped, which cannot be read by row; gunzip it, or build an "
                    "index directory with: tree-grpo index"
                )
            file.seek(0)
            self.starts = _line_starts(file)
            size = file.seek(0, 2)
            # an empty file cannot be mapped
            self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b""

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, row: int) -> Row:
        """The row with this number; IndexError outside [0, len), so -1 is never the last row."""
        if not 0 <= row < len(self):
            raise IndexError(f"row {row} of {self.path}, which has {len(self)} rows")
        start = int(self.starts[row])
        end = self._bytes.find(b"\n", start)
        line = self._bytes[start : end if end >= 0 else len(self._bytes)]
        return parse_row(line, f"{self.path}, row {row}")

    def __iter__(self) -> Iterator[Row]:
        return (self[row] for row in range(len(self)))


def _line_starts(file: Any) -> np.ndarray:
    starts: list[int] = []
    position = 0
    for line in file:
        skip = len(BOM) if position == 0 and line.startswith(BOM) else 0
        if line[skip:].strip():
            starts.append(position + skip)
        position += len(line)
    return np.asarray(starts, dtype=np.int64)
