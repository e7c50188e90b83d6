"""What a demo policy can do: ``python -m verl_tree_grpo.demo.check_policy --policy DIR``.

Three numbers by kind of question, on held-out questions with real retrieval: exact match decoded
greedily, exact match sampled at temperature 1 (and whether any of eight samples is right), and
exact match with the *strategy forced*: the policy writes everything itself, but may not answer
before the chain is complete nor search after it. The gap between the first and the last is what
reinforcement learning can gain without learning to read any better.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer, LogitsProcessor, LogitsProcessorList, Qwen2ForCausalLM

from search_r1.data import geohop
from search_r1.data.geohop_questions import KINDS, Question
from search_r1.data.geohop_world import load_world, write_passages
from search_r1.parsing import find_action
from search_r1.prompts import INVALID_TURN, observe
from search_r1.rewards.exact_match import exact_match
from search_r1.types import ActionKind
from verl_tree_grpo.demo.examples import Codec
from verl_tree_grpo.demo.passages import PassageIndex


@dataclass(frozen=True, slots=True)
class Limits:
    """The rollout's limits, tokens per turn and observation, searches, documents per search."""

    max_turn_tokens: int = 64
    max_observation_tokens: int = 96
    max_turns: int = 3
    topk: int = 1


@dataclass(slots=True)
class Chain:
    """One rollout in progress."""

    question: Question
    ids: list[int]
    searches: int = 0
    invalid: int = 0
    written: int = 0
    answer: str | None = None
    done: bool = False
    turns: list[str] = field(default_factory=list[str])


class ForceStrategy(LogitsProcessor):
    """Forbids ``<answer>`` where a row must search, ``<search>`` where it must answer."""

    def __init__(self, forbidden: Sequence[int]) -> None:
        self.forbidden = torch.tensor(forbidden)

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> Any:
        """Scores with one tag a row forbidden, shape (B, V)."""
        return scores.scatter(1, self.forbidden[:, None], float("-inf"))


class Checker:
    """Runs a policy against held-out questions."""

    def __init__(self, policy: Path, limits: Limits, index: PassageIndex) -> None:
        self.model: Any = Qwen2ForCausalLM.from_pretrained(policy, dtype=torch.float32).eval()
        self.tokenizer = AutoTokenizer.from_pretrained(policy)
        self.codec = Codec(self.tokenizer)
        self.limits, self.index = limits, index
        self.tag = {t: self.codec.encode(t)[0] for t in ("<search>", "<answer>", "</search>")}
        self.ends = [self.tag["</search>"], self.codec.encode("</answer>")[0], self.codec.end_id]

    def roll(self, questions: Sequence[Question], *, sample: bool, force: bool) -> list[Chain]:
        """One chain per question."""
        chains = [Chain(q, self.codec.prompt(q.text)) for q in questions]
        for depth in range(self.limits.max_turns + 1):
            open_chains = sorted((c for c in chains if not c.done), key=lambda c: len(c.ids))
            for start in range(0, len(open_chains), 64):
                self._turn(open_chains[start : start + 64], depth, sample, force)
        return chains

    def _turn(self, group: list[Chain], depth: int, sample: bool, force: bool) -> None:
        written = self._generate(group, sample, force)
        actions = [find_action(self.codec.decode(ids))[0] for ids in written]
        queries = [a.text for a in actions if a.kind is ActionKind.SEARCH]
        found = iter(self.index.search_many(queries, self.limits.topk))
        for chain, ids, action in zip(group, written, actions, strict=True):
            chain.ids += ids
            chain.written += len(ids)
            chain.turns.append(self.codec.decode(ids))
            if action.kind is ActionKind.ANSWER:
                chain.answer, chain.done = action.text, True
            elif action.kind is ActionKind.SEARCH:
                documents = next(found)
                seen = observe(
                    documents,
                    encode=self.codec.encode,
                    decode=self.codec.decode,
                    limit=self.limits.max_observation_tokens,
                )
                assert seen is not None, "the limit holds at least the tags"
                chain.ids += seen[0]
                chain.searches += 1
            else:
                chain.ids += self.codec.encode(INVALID_TURN)
                chain.invalid += 1
            chain.done = chain.done or depth == self.limits.max_turns

    @torch.no_grad()
    def _generate(self, group: list[Chain], sample: bool, force: bool) -> list[list[int]]:
        width = max(len(c.ids) for c in group)
        padded = torch.tensor([[0] * (width - len(c.ids)) + c.ids for c in group])
        visible = torch.tensor([[0] * (width - len(c.ids)) + [1] * len(c.ids) for c in group])
        processors = LogitsProcessorList()
        if force:
            processors.append(ForceStrategy([self._forbidden(c) for c in group]))
        out: Any = self.model.generate(
            input_ids=padded,
            attention_mask=visible,
            max_new_tokens=self.limits.max_turn_tokens,
            do_sample=sample,
            temperature=1.0 if sample else None,
            top_k=0 if sample else None,
            top_p=1.0 if sample else None,
            eos_token_id=self.ends,
            pad_token_id=0,
            logits_processor=processors,
        )
        return [self._cut(row) for row in out[:, width:].tolist()]

    def _forbidden(self, chain: Chain) -> int:
        complete = chain.searches >= len(chain.question.chain)
        return self.tag["<search>" if complete else "<answer>"]

    def _cut(self, ids: list[int]) -> list[int]:
        stops = [i for i, token in enumerate(ids) if token in self.ends]
        return ids[: stops[0] + 1] if stops else ids


def summarise(chains: Sequence[Chain]) -> dict[str, Any]:
    """Exact match by kind and overall, invalid turns, searches and tokens per chain."""
    hits: dict[str, list[float]] = defaultdict(list)
    for c in chains:
        hits[c.question.kind].append(is_right(c))
    em = {k: round(sum(hits[k]) / len(hits[k]), 3) for k in KINDS if hits[k]}
    n = len(chains)
    return {
        "em": em,
        "em_all": round(sum(sum(v) for v in hits.values()) / n, 3),
        "no_answer": round(sum(c.answer is None for c in chains) / n, 4),
        "invalid_turns": round(sum(c.invalid for c in chains) / n, 4),
        "searches": round(sum(c.searches for c in chains) / n, 2),
        "written_tokens": round(sum(c.written for c in chains) / n, 1),
        "sequence_tokens": round(sum(len(c.ids) for c in chains) / n, 1),
        "longest_sequence": max(len(c.ids) for c in chains),
    }


def is_right(chain: Chain) -> float:
    """1.0 where the answer matches."""
    return exact_match(chain.answer, (chain.question.answer,))


def pass_at(rounds: Sequence[Sequence[Chain]]) -> dict[str, float]:
    """By kind, the share of questions that at least one round answers."""
    solved: dict[str, list[bool]] = defaultdict(list)
    for tries in zip(*rounds, strict=True):
        solved[tries[0].question.kind].append(any(is_right(c) for c in tries))
    return {k: round(sum(solved[k]) / len(solved[k]), 3) for k in KINDS}


def measure(checker: Checker, questions: Sequence[Question], *, num_samples: int) -> dict[str, Any]:
    """Greedy, forced and sampled results."""
    report: dict[str, Any] = {
        "greedy": summarise(checker.roll(questions, sample=False, force=False)),
        "forced": summarise(checker.roll(questions, sample=False, force=True)),
    }
    if num_samples:
        torch.manual_seed(1)
        rounds = [checker.roll(questions, sample=True, force=False) for _ in range(num_samples)]
        report["sampled"] = summarise([c for r in rounds for c in r])
        report[f"pass@{num_samples}"] = pass_at(rounds)
    return report


def main() -> None:
    """Command line; prints one JSON object."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--policy", type=Path, required=True, help="folder of a checkpoint")
    parser.add_argument("--questions", type=int, default=240)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--topk", type=int, default=Limits().topk)
    args = parser.parse_args()
    world = load_world()
    _, tests = geohop.make_questions(world, num_train=0, num_test=args.questions, seed=1)
    index = PassageIndex(write_passages(world))
    checker = Checker(args.policy, Limits(topk=args.topk), index)
    print(json.dumps(measure(checker, tests, num_samples=args.samples), indent=1))


if __name__ == "__main__":
    main()
