"""The backends that an index directory can hold, one file each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from retrieval_server.backends import bm25, faiss_index
from retrieval_server.corpus import Corpus
from retrieval_server.encoder import Encoder
from retrieval_server.protocols import Backend


class Kind(NamedTuple):
    """How a backend is built into a folder and opened from it."""

    build: Callable[[Corpus, Path, Encoder | None, Callable[[int], None]], None]
    open: Callable[[Corpus, Path, Encoder | None], Backend]
    needs_encoder: bool
    index_type: str


BACKENDS: dict[str, Kind] = {
    "faiss": Kind(faiss_index.build, faiss_index.open_index, True, "Flat inner product"),
    "bm25": Kind(bm25.build, bm25.open_index, False, "BM25 Lucene, English stems"),
}
