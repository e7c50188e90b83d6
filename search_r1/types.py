"""The vocabulary of the project: what a search agent reads, writes and is judged by.

A :class:`Query` is one question. The policy answers it in steps; each :class:`Step` holds only
what that turn added: the sampled tokens, and the observation that answered them. A walk over
steps from the prompt to a leaf is a :class:`Trajectory`, the row a trainer sees.

Two absences are kept apart everywhere: ``None`` means *never scored* (the branch failed),
``0.0`` means *scored, and worth nothing*.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from search_r1.ledger import Cost


class ActionKind(StrEnum):
    """What the policy asked for in one turn."""

    SEARCH = "search"
    ANSWER = "answer"
    INVALID = "invalid"


@dataclass(frozen=True, slots=True)
class Action:
    """The parsed action of one turn: a search query, a final answer, or why it is neither."""

    kind: ActionKind
    text: str


class StopReason(StrEnum):
    """Why a branch ended."""

    ANSWERED = "answered"
    """The policy wrote a complete answer."""
    MAX_TURNS = "max_turns"
    """The forced last turn ended without an answer."""
    MAX_TOKENS = "max_tokens"
    """The context budget cannot hold the next turn."""
    ERROR = "error"
    """A policy or retriever failure; such a leaf has no reward and no advantage."""

    @property
    def is_truncated(self) -> bool:
        """Whether a limit, not the policy, ended the branch."""
        return self in (StopReason.MAX_TURNS, StopReason.MAX_TOKENS)


class Owner(StrEnum):
    """Who wrote a token. Loss masks come from this, never from comparing with a pad id."""

    PROMPT = "prompt"
    MODEL = "model"
    OBSERVATION = "observation"


@dataclass(frozen=True, slots=True)
class Document:
    """One retrieved passage. ``score`` is None where the retriever gave none."""

    id: str
    title: str
    text: str
    score: float | None = None


@dataclass(frozen=True, slots=True)
class Query:
    """One prompt instance.

    Attributes:
        uid: opaque and unique per prompt instance; never a dataset row index, never with ``_``.
        question: the bare question text.
        prompt_ids: the rendered prompt, token ids, shape (P,).
        golden_answers: accepted answers, never empty for a scored query.
        data_source: benchmark name, chooses the scoring rule.
        extra: anything a scorer or report wants to carry along.
    """

    uid: str
    question: str
    prompt_ids: tuple[int, ...]
    golden_answers: tuple[str, ...] = ()
    data_source: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class Generation:
    """What one call to the policy returned.

    ``token_ids`` and ``logprobs`` have equal length; nothing in them was ever decoded and encoded
    again. ``num_cached_tokens`` counts context tokens served from the engine's prefix cache.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    num_cached_tokens: int = 0
    weight_version: int | None = None


@dataclass(frozen=True, slots=True)
class Failure:
    """A caught failure: the boundary it crossed (``policy``, ``retriever``) and what it said."""

    boundary: str
    message: str


@dataclass(frozen=True, slots=True)
class Step:
    """One agent turn, stored as a tree node's payload: sampled tokens, then observation tokens."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    text: str
    action: Action
    observation_ids: tuple[int, ...] = ()
    observation: str = ""
    documents: tuple[Document, ...] = ()
    cost: Cost = field(default_factory=Cost)
    stop: StopReason | None = None
    failure: Failure | None = None
    weight_version: int | None = None


@dataclass(frozen=True, slots=True)
class Reward:
    """The score of one leaf: ``value`` trains, ``metrics`` (em, f1, format, ...) inform."""

    value: float
    metrics: Mapping[str, float] = field(default_factory=dict[str, float])


@dataclass(frozen=True, slots=True)
class Trajectory:
    """A walk from the root to one leaf: one training row.

    ``response_ids``, ``owners`` and ``logprobs`` have shape (R,); observation tokens carry
    log-prob 0.0 and are never trained.
    """

    prompt_ids: tuple[int, ...]
    response_ids: tuple[int, ...]
    owners: tuple[Owner, ...]
    logprobs: tuple[float, ...]
    steps: tuple[Step, ...]
    stop: StopReason

    @property
    def response_mask(self) -> list[int]:
        """1 on tokens the model wrote, 0 on observations, shape (R,)."""
        return [int(owner is Owner.MODEL) for owner in self.owners]

    @property
    def turn_texts(self) -> list[str]:
        """The text of each turn as the model wrote it; the only text a scorer may read (FC-02)."""
        return [step.text for step in self.steps]

    @property
    def actions(self) -> list[Action]:
        """The parsed action of each turn."""
        return [step.action for step in self.steps]

    @property
    def answer(self) -> str | None:
        """The answer the model gave, or None."""
        last = self.steps[-1].action if self.steps else None
        return last.text if last is not None and last.kind is ActionKind.ANSWER else None


Rewards = Sequence[Sequence[float | None]]
"""Leaf rewards of one prompt, grouped by tree; None where the leaf failed."""
