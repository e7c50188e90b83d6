"""What a retrieval client and a retrieval server say to each other, as pure functions.

The protocol is the one of Search-R1: ``POST /retrieve {"queries", "topk", "return_scores"}`` is
answered by ``{"result": [[item, ...], ...]}``, one inner list per query. An item is
``{"document": {...}, "score": s}``, or the bare document where scores are off. A document has an
``id`` and ``contents``: the quoted title, a newline, the text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, cast

from search_r1.types import Document

MAX_QUERY_CHARS = 10_000
"""The client cuts a longer query to this many characters; the server refuses it."""

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_SURROGATE = re.compile(r"[\ud800-\udfff]")


def clean_text(text: str) -> str:
    """Make ``text`` valid UTF-8: surrogate pairs are joined, a lone surrogate becomes U+FFFD.

    >>> clean_text("kelp \\ud83d")
    'kelp \ufffd'
    """
    if not _SURROGATE.search(text):
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def clean_query(text: str) -> str:
    """A query as it is searched: valid UTF-8, each control character (Cc) a space, ends stripped.

    Nothing else changes: case, accents, scripts and inner spaces stay.

    >>> clean_query("tall\\ntower\\x00 ")
    'tall tower'
    """
    return _CONTROL.sub(" ", clean_text(text)).strip()


def split_contents(contents: str) -> tuple[str, str]:
    """Title without its quotes, and text. A row without a newline is all text.

    >>> split_contents('"Kelp"\\nKelp grows.\\nFast.')
    ('Kelp', 'Kelp grows.\\nFast.')
    >>> split_contents("Kelp grows")
    ('', 'Kelp grows')
    """
    title, newline, text = contents.partition("\n")
    if not newline:
        return "", contents
    title = title.strip()
    if len(title) >= 2 and title[0] == title[-1] == '"':
        title = title[1:-1]
    return title, text


def join_contents(title: str, text: str) -> str:
    """The inverse of :func:`split_contents`."""
    return f'"{title}"\n{text}'


def parse_document(item: object) -> Document:
    """One item of an answer, with or without its score; ValueError where it is no document."""
    row, score = item, None
    if isinstance(item, Mapping) and "document" in item:
        scored = cast("Mapping[str, Any]", item)
        row, score = scored["document"], scored.get("score")
    if not isinstance(row, Mapping):
        raise ValueError(f"got the document {row!r:.100}, expected an object")
    document = cast("Mapping[str, Any]", row)
    if "contents" in document:
        title, text = split_contents(str(document["contents"]))
    elif "text" in document:
        title, text = str(document.get("title") or ""), str(document["text"])
    else:
        raise ValueError(f"got a document with {sorted(document)}, expected 'contents'")
    if score is not None and not isinstance(score, int | float):
        raise ValueError(f"got the score {score!r:.100}, expected a number")
    return Document(
        id=str(document.get("id", "")),
        title=clean_text(title),
        text=clean_text(text),
        score=None if score is None else float(score),
    )


def parse_answer(body: object, num_queries: int) -> list[list[Document]]:
    """The documents of each query; ValueError where the body is not one list per query."""
    result = cast("Mapping[str, Any]", body).get("result") if isinstance(body, Mapping) else None
    if not isinstance(result, list):
        raise ValueError(f'got {body!r:.100}, expected {{"result": [[...], ...]}}')
    lists = cast("list[Any]", result)
    if len(lists) != num_queries or not all(isinstance(items, list) for items in lists):
        raise ValueError(f"got {lists!r:.100}, expected {num_queries} lists, one per query")
    return [[parse_document(item) for item in items] for items in lists]
