"""Sparse search: BM25 over English stems, arrays memory-mapped from disk."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from retrieval_server.corpus import Corpus
from retrieval_server.encoder import Encoder
from retrieval_server.protocols import Hit

FOLDER = "bm25"
LANGUAGE = "english"


class Bm25Backend:
    """Implements :class:`retrieval_server.protocols.Backend` with bm25s.

    A document that shares no word with the query scores 0 and is not a hit.
    """

    name = "bm25"

    def __init__(self, index: Any, corpus: Corpus, source: str = "index") -> None:
        import Stemmer

        num_docs = index.scores["num_docs"]
        if num_docs != len(corpus):
            raise ValueError(
                f"{source} has {num_docs} documents, but the corpus has {len(corpus)} rows; "
                "use the corpus the index was built from"
            )
        self.index = index
        self.corpus = corpus
        self._stemmer = Stemmer.Stemmer(LANGUAGE)
        self._lock = threading.Lock()  # the stemmer keeps state

    def __len__(self) -> int:
        return len(self.corpus)

    def search(self, queries: list[str], topk: int) -> list[list[Hit]]:
        """Best first; equal scores in the order bm25s gives them."""
        with self._lock:
            words = tokenise(queries, self._stemmer)
        return [self._search_one(query_words, topk) for query_words in words]

    def _search_one(self, words: list[str], topk: int) -> list[Hit]:
        known = [word for word in words if word in self.index.vocab_dict]
        if not known:
            return []
        rows, scores = self.index.retrieve(
            [known], k=min(topk, len(self)), show_progress=False, backend_selection="numpy"
        )
        found = zip(rows[0].tolist(), scores[0].tolist(), strict=True)
        return [Hit(self.corpus[row], score) for row, score in found if score > 0]


def tokenise(texts: list[str], stemmer: Any) -> list[list[str]]:
    """Lower-case stems of words of two letters or more, without English stop words."""
    import bm25s

    return bm25s.tokenize(  # type: ignore[return-value]
        texts, stopwords="en", stemmer=stemmer, return_ids=False, show_progress=False
    )


def build(
    corpus: Corpus, folder: Path, encoder: Encoder | None, report: Callable[[int], None]
) -> None:
    """Index the corpus and write the arrays; ``report`` hears the number of finished rows."""
    import bm25s
    import Stemmer

    tokens = tokenise([row["contents"] for row in corpus], Stemmer.Stemmer(LANGUAGE))
    if not any(tokens):
        raise ValueError(f"no row of {corpus.path} has a word that BM25 can index")
    index = bm25s.BM25()
    index.index(tokens, show_progress=False)
    index.save(str(folder / FOLDER))
    report(len(corpus))


def open_index(corpus: Corpus, folder: Path, encoder: Encoder | None) -> Bm25Backend:
    """Open what :func:`build` wrote."""
    import bm25s

    path = folder / FOLDER
    if not path.is_dir():
        raise ValueError(f"there is no BM25 index {path}")
    index = bm25s.BM25.load(str(path), mmap=True, show_progress=False)
    return Bm25Backend(index, corpus, str(folder))
