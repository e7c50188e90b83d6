"""Demonstrations -> token ids with a mask, exactly as a rollout would lay them out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

from search_r1.data.geohop_questions import KINDS, Question, draw
from search_r1.data.geohop_world import World
from search_r1.prompts import build_prompt, observe
from verl_tree_grpo.demo.passages import PassageIndex
from verl_tree_grpo.demo.traces import Haste, Turn, demonstrate, toy_search
from verl_tree_grpo.demo.worlds import Names, invent_world
from verl_tree_grpo.policy import HFCodec

MAX_OBSERVATION_TOKENS = 160
KINDS_IN_A_WORLD = KINDS * 2


@dataclass(frozen=True, slots=True)
class Example:
    """One token sequence; ``mask`` is 1 on tokens the policy is to write. Shapes (T,)."""

    ids: list[int]
    mask: list[int]
    kind: str


class Codec(HFCodec):
    """The rollout's tokenizer, which also lays out demonstrations as a rollout would."""

    @property
    def end_id(self) -> int:
        """The id that closes a turn."""
        return int(self.tokenizer.eos_token_id)

    def prompt(self, question: str) -> list[int]:
        """The rendered chat prompt of a question."""
        return self.render([{"role": "user", "content": build_prompt(question, "bare")}])

    def example(self, question: Question, turns: Sequence[Turn]) -> Example:
        """Prompt, turns and observations in one sequence; observations are not trained."""
        ids = self.prompt(question.text)
        mask = [0] * len(ids)
        for turn in turns:
            written = self.encode(turn.text)
            if turn.documents is None:
                written.append(self.end_id)
            ids += written
            mask += [1] * len(written)
            if turn.documents is not None:
                seen = observe(
                    turn.documents,
                    encode=self.encode,
                    decode=self.decode,
                    limit=MAX_OBSERVATION_TOKENS,
                )
                assert seen is not None, "the limit holds at least the tags"
                ids += seen[0]
                mask += [0] * len(seen[0])
        return Example(ids, mask, question.kind)


@dataclass
class Teacher:
    """An endless source of demonstrations, from invented worlds and from the real train split.

    ``topk`` is drawn per world from ``topks``; ``real_share`` is the share of real questions.
    """

    codec: Codec
    names: Names
    world: World
    questions: Sequence[Question]
    index: PassageIndex
    haste: Haste
    rng: Random
    topks: Sequence[int] = (1, 1, 1, 2)
    real_share: float = 0.3

    def stream(self) -> Iterator[Example]:
        """Examples, for ever."""
        while True:
            if self.rng.random() < self.real_share:
                yield from self.real(self.rng.sample(list(self.questions), len(KINDS_IN_A_WORLD)))
            else:
                yield from self.invented()

    def invented(self) -> Iterator[Example]:
        """Questions of one invented world."""
        world = invent_world(self.names, self.rng)
        search = toy_search(world, self.rng.choice(self.topks))
        for kind in KINDS_IN_A_WORLD:
            question = draw(world, kind, list(world.city), list(world.country), self.rng)
            turns = demonstrate(question, world, search, self.haste, self.rng)
            yield self.codec.example(question, turns)

    def real(self, questions: Sequence[Question]) -> Iterator[Example]:
        """Given questions with real retrieval."""
        search = self.index.as_search(self.rng.choice(self.topks))
        for question in questions:
            turns = demonstrate(question, self.world, search, self.haste, self.rng)
            yield self.codec.example(question, turns)
