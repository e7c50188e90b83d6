"""What the server needs from a search engine, and nothing more."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Hit:
    """One found document, as it goes out (``id``, ``contents``, anything else), and its score."""

    document: Mapping[str, Any]
    score: float


class Backend(Protocol):
    """A search engine over one corpus. The server calls it from worker threads, in parallel."""

    name: str
    """How it is called in reports and tables."""

    def __len__(self) -> int:
        """Documents it can find."""
        ...

    def search(self, queries: list[str], topk: int) -> list[list[Hit]]:
        """At most ``topk`` hits per query, best first, one list per query; lists may be empty."""
        ...
