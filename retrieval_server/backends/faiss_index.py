"""Dense search: a flat FAISS index, exact inner product."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from retrieval_server.corpus import Corpus
from retrieval_server.encoder import Encoder
from retrieval_server.protocols import Hit

FILE = "faiss.index"
CHUNK = 512


class FaissBackend:
    """Implements :class:`retrieval_server.protocols.Backend`; an index of FAISS over a corpus.

    Raises ValueError where index, corpus and encoder do not belong together.
    """

    name = "faiss"

    def __init__(self, index: Any, corpus: Corpus, encoder: Encoder, source: str = "index") -> None:
        check_index(index, len(corpus), encoder, source)
        self.index = index
        self.corpus = corpus
        self.encoder = encoder

    def __len__(self) -> int:
        return self.index.ntotal

    def search(self, queries: list[str], topk: int) -> list[list[Hit]]:
        """Exact search. FAISS fills short lists with the id -1, which is dropped (FC-23)."""
        if not queries or len(self) == 0:
            return [[] for _ in queries]
        vectors = self.encoder.encode_queries(queries)
        scores, rows = self.index.search(vectors, min(topk, len(self)))
        return [
            [Hit(self.corpus[row], score) for row, score in zip(*pair, strict=True) if row >= 0]
            for pair in zip(rows.tolist(), scores.tolist(), strict=True)
        ]


def check_index(index: Any, num_rows: int, encoder: Encoder, source: str) -> None:
    """ValueError naming both sides where widths, sizes, metric or normalisation differ (FC-45)."""
    import faiss

    if index.d != encoder.dim:
        raise ValueError(
            f"{source} has vectors of width {index.d}, but the encoder {encoder.name!r} makes "
            f"vectors of width {encoder.dim}; use the encoder the index was built with"
        )
    if index.ntotal != num_rows:
        raise ValueError(
            f"{source} has {index.ntotal} vectors, but the corpus has {num_rows} rows; "
            "use the corpus the index was built from"
        )
    if index.metric_type != faiss.METRIC_INNER_PRODUCT:
        raise ValueError(
            f"{source} has the FAISS metric {index.metric_type}, expected inner product "
            f"({faiss.METRIC_INNER_PRODUCT}); build it again with: tree-grpo index"
        )
    if encoder.family.normalised and isinstance(index, faiss.IndexFlat) and num_rows:
        rows = range(0, num_rows, max(1, num_rows // 16))
        norms = np.array([np.linalg.norm(index.reconstruct(row)) for row in rows])
        worst = norms[np.abs(norms - 1.0).argmax()]
        if abs(worst - 1.0) > 0.05:
            raise ValueError(
                f"{source} has a vector of length {worst:.3g}, expected 1: the encoder "
                f"{encoder.name!r} ({encoder.family_name}) normalises; build the index again"
            )


def agreement(backend: FaissBackend, num_rows: int = 3) -> float:
    """Lowest cosine between stored vectors and those of the encoder, over a few rows; 1.0 is right.

    It tells a wrong model, a wrong passage prefix or a corpus in another order of rows.
    """
    rows = sorted({int(row) for row in np.linspace(0, len(backend) - 1, num_rows)})
    stored = np.stack([backend.index.reconstruct(row) for row in rows])
    fresh = backend.encoder.encode_passages([backend.corpus[row]["contents"] for row in rows])
    lengths = np.linalg.norm(stored, axis=1) * np.linalg.norm(fresh, axis=1)
    return float(((stored * fresh).sum(axis=1) / np.maximum(lengths, 1e-12)).min())


def build(
    corpus: Corpus, folder: Path, encoder: Encoder | None, report: Callable[[int], None]
) -> None:
    """Encode the corpus and write the index; ``report`` hears the number of finished rows."""
    import faiss

    assert encoder is not None, "the table of backends says that faiss needs an encoder"
    index = faiss.IndexFlatIP(encoder.dim)
    for start in range(0, len(corpus), CHUNK):
        rows = range(start, min(start + CHUNK, len(corpus)))
        index.add(encoder.encode_passages([corpus[row]["contents"] for row in rows]))  # type: ignore[call-arg]
        report(rows.stop)
    faiss.write_index(index, str(folder / FILE))


def open_index(corpus: Corpus, folder: Path, encoder: Encoder | None) -> FaissBackend:
    """Open what :func:`build` wrote."""
    assert encoder is not None, "the table of backends says that faiss needs an encoder"
    return FaissBackend(read_faiss(folder / FILE), corpus, encoder, str(folder))


def read_faiss(path: Path) -> Any:
    """A FAISS index file, such as ``e5_Flat.index``."""
    import faiss

    if not path.is_file():
        raise ValueError(f"there is no FAISS index file {path}")
    try:
        return faiss.read_index(str(path))
    except RuntimeError as error:
        raise ValueError(f"{path} is no FAISS index file: {str(error)[:200]}") from error
