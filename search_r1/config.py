"""The knobs of a tree rollout, as the top-level ``tree:`` group of the hydra configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any


@dataclass(frozen=True, slots=True)
class TreeConfig:
    """How trees grow and what a leaf may cost.

    Attributes:
        M: trees per prompt.
        N: nodes each tree expands in one round.
        L: rounds of expansion; 0 gives plain chains.
        K: leaves each tree returns; None returns all ``1 + L*N``.
        expansion: name in :data:`search_r1.expansion.EXPANDERS`.
        reward: name in :data:`search_r1.rewards.REWARDS`, the training reward of a leaf.
        validation_reward: the same for validation, which runs plain chains.
        validation_subset: key of the row's ``extra_info`` by which validation scores are broken
            down as well (``hops``, ``level``, ...); None for none.
        max_turns: searches per branch (an invalid action uses one up); then one forced answer.
        topk: documents per search.
        max_turn_tokens: limit of one sampled turn, tokens.
        max_observation_tokens: limit of one observation with its tags, tokens.
        max_response_tokens: limit of all turns and observations of a branch, tokens; None derives
            the value no branch can exceed.
        observation_keep: which end of an over-long passage block stays, ``start`` or ``end``.
        max_query_chars: a longer query is cut to this many characters.
        max_error_fraction: a step with a larger share of failed leaves stops the run.
        max_probability_gap: a step whose mean absolute difference between rollout and trainer
            probabilities is larger stops the run: the engine samples from other weights (FC-46).
        seed: root of every random choice.
        retriever_url: base URL of the retrieval server.
        retriever_timeout_s: limit of one request, seconds.
        retriever_retries: further tries after a connection error, 429 or 5xx.
        record: JSONL file that receives the first ``record_per_step`` forests of each step; None
            writes nothing.
        record_per_step: forests recorded per step.
    """

    M: int = 2
    N: int = 2
    L: int = 1
    K: int | None = None
    expansion: str = "random"
    reward: str = "em"
    validation_reward: str = "em_only"
    validation_subset: str | None = None
    max_turns: int = 3
    topk: int = 3
    max_turn_tokens: int = 500
    max_observation_tokens: int = 500
    max_response_tokens: int | None = None
    observation_keep: str = "start"
    max_query_chars: int = 1000
    max_error_fraction: float = 0.1
    max_probability_gap: float = 0.05
    seed: int = 1
    retriever_url: str = "http://127.0.0.1:8000"
    retriever_timeout_s: float = 30.0
    retriever_retries: int = 4
    record: str | None = None
    record_per_step: int = 2

    def __post_init__(self) -> None:
        for name in ("M", "max_turns", "topk", "max_turn_tokens", "max_observation_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"tree.{name} is {getattr(self, name)}; it must be at least 1")
        for name in ("N", "L", "record_per_step", "retriever_retries"):
            if getattr(self, name) < 0:
                raise ValueError(f"tree.{name} is {getattr(self, name)}; it must not be negative")
        if self.K is not None and not 1 <= self.K <= self.leaves_grown:
            raise ValueError(
                f"tree.K is {self.K}, but a tree with N={self.N} and L={self.L} grows "
                f"1 + L*N = {self.leaves_grown} leaves; choose 1 <= K <= {self.leaves_grown}"
            )
        if self.observation_keep not in ("start", "end"):
            raise ValueError(
                f"tree.observation_keep is {self.observation_keep!r}; expected 'start' or 'end'"
            )
        if not 0 <= self.max_error_fraction <= 1:
            raise ValueError(
                f"tree.max_error_fraction is {self.max_error_fraction}; expected a share in [0, 1]"
            )

    @property
    def leaves_grown(self) -> int:
        """Leaves a tree grows: the first chain and one a branch, ``1 + L*N``."""
        return 1 + self.L * self.N

    @property
    def leaves_kept(self) -> int:
        """Leaves a tree returns, K."""
        return self.leaves_grown if self.K is None else self.K

    @property
    def leaves_per_prompt(self) -> int:
        """Training rows per prompt, ``M*K``; this is verl's ``rollout.n``."""
        return self.M * self.leaves_kept

    @property
    def response_tokens(self) -> int:
        """Limit of a branch, tokens: ``max_response_tokens``, or the sum of its parts."""
        if self.max_response_tokens is not None:
            return self.max_response_tokens
        return (self.max_turns + 1) * self.max_turn_tokens + (
            self.max_turns * self.max_observation_tokens
        )

    def chains(self, n: int = 1) -> TreeConfig:
        """The same agent without branching: ``n`` plain chains, as validation uses."""
        return replace(self, M=n, N=0, L=0, K=None)

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> TreeConfig:
        """Build from the ``tree:`` group; an unknown key is an error that names the nearest one."""
        import difflib

        known = {f.name for f in fields(cls)}
        for key in values:
            if key not in known:
                near = difflib.get_close_matches(key, known, n=1)
                hint = f"; did you mean tree.{near[0]}?" if near else ""
                raise ValueError(f"unknown key tree.{key}{hint} Known: {', '.join(sorted(known))}")
        return cls(**values)
