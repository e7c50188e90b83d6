"""What the rollout needs from the outside world, and nothing more.

The rollout never knows which engine, server or rule stands behind these.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Protocol

from search_r1.tree import Tree
from search_r1.types import Document, Generation, Query, Reward, Trajectory


class PolicyError(Exception):
    """The policy could not generate; the branch ends, the run goes on."""


class RetrieverError(Exception):
    """The retriever stayed down after its retries; the branch ends, the run goes on."""


class Policy(Protocol):
    """A language model behind token ids."""

    async def generate(
        self,
        context_ids: Sequence[int],
        *,
        request_id: str,
        max_tokens: int,
        stop: Sequence[str],
    ) -> Generation:
        """Continue ``context_ids`` by at most ``max_tokens``, ending after one of ``stop``.

        ``request_id`` is equal for all requests of one prompt, so that they meet the same prefix
        cache. The stop string stays in the output. Raises :class:`PolicyError`.
        """
        ...

    def encode(self, text: str) -> list[int]:
        """Tokenise an observation. Control tokens spelled in ``text`` become ordinary text."""
        ...

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of sampled tokens, control tokens left out."""
        ...

    @property
    def reopen_ids(self) -> Sequence[int]:
        """What the chat template puts between a closed assistant turn and the next one.

        Empty for a tokenizer without a template.
        """
        ...

    @property
    def end_ids(self) -> frozenset[int]:
        """Ids that close the assistant turn."""
        ...


class Retriever(Protocol):
    """A search engine."""

    async def search(self, query: str, topk: int) -> list[Document]:
        """At most ``topk`` documents, best first; an empty list is an answer, not an error.

        Raises :class:`RetrieverError` when no answer could be had.
        """
        ...


class Scorer(Protocol):
    """A reward rule."""

    def __call__(self, trajectory: Trajectory, query: Query) -> Reward:
        """Score one finished trajectory by the text the model wrote, never by observations."""
        ...


class Expander(Protocol):
    """An expansion policy: which nodes a tree grows its next branches from."""

    def __call__(self, tree: Tree, n: int, rng: random.Random) -> list[int]:
        """Node indices, one per new branch, at most ``n``; a node may appear more than once."""
        ...
