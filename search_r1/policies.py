"""Policies that need no engine: a scripted one, for tests, docs and dry runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from search_r1.types import Generation

END_ID = 0
"""Closes the assistant turn in the scripted policy's toy vocabulary."""


class ScriptedPolicy:
    """A policy whose next turn is a function of the text so far; one token per character.

    ``script`` receives the context as text and returns the whole next turn. A script that raises
    :class:`~search_r1.protocols.PolicyError` plays a broken engine. Log-probs are a constant -0.5.
    """

    def __init__(self, script: Callable[[str], str], *, latency_s: float = 0.0) -> None:
        self._script = script
        self._latency_s = latency_s
        self.contexts: list[list[int]] = []
        self.request_ids: list[str] = []

    async def generate(
        self, context_ids: Sequence[int], *, request_id: str, max_tokens: int, stop: Sequence[str]
    ) -> Generation:
        """Write the scripted turn, cut behind the first stop string as an engine would."""
        import asyncio

        await asyncio.sleep(self._latency_s)
        self.contexts.append(list(context_ids))
        self.request_ids.append(request_id)
        text = self._script(self.decode(context_ids))
        ends = [text.index(s) + len(s) for s in stop if s in text]
        ids = self.encode(text[: min(ends, default=len(text))])[:max_tokens]
        return Generation(tuple(ids), (-0.5,) * len(ids))

    def encode(self, text: str) -> list[int]:
        """One id per character, shifted by one; 0 is the end of turn."""
        return [ord(c) + 1 for c in text]

    def decode(self, token_ids: Sequence[int]) -> str:
        """Characters of the ids; the end of turn has none."""
        return "".join(chr(i - 1) for i in token_ids if i != END_ID)

    @property
    def reopen_ids(self) -> Sequence[int]:
        """A newline, as most chat templates put after a closed turn."""
        return self.encode("\n")

    @property
    def end_ids(self) -> frozenset[int]:
        """The end-of-turn id."""
        return frozenset({END_ID})
