"""Supervised warm start of the demo policy: ``python -m verl_tree_grpo.demo.warm_start``.

Two stages. *Skill*: careful demonstrations, most of them from invented worlds, so that the policy
learns to copy and to read rather than facts. It starts with a copying circuit already in place
(:mod:`~verl_tree_grpo.demo.induction`); the first minutes add random sequences repeated twice and a
small loss on what it only reads.
*Mixture*: a short stage in which the teacher is hasty (:class:`~verl_tree_grpo.demo.traces.Haste`).
Its result answers too early when decoded greedily, though it can do better, and that gap is what
reinforcement learning closes.
"""

from __future__ import annotations

import argparse
import math
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from search_r1.data import geohop
from search_r1.data.geohop_questions import Question
from search_r1.data.geohop_world import World, load_world, write_passages
from search_r1.prompts import format_documents
from verl_tree_grpo.demo.examples import Codec, Example, Teacher
from verl_tree_grpo.demo.induction import plant_induction
from verl_tree_grpo.demo.passages import PassageIndex
from verl_tree_grpo.demo.tokenizer import train_tokenizer
from verl_tree_grpo.demo.traces import CAREFUL, Haste, demonstrate, toy_search
from verl_tree_grpo.demo.worlds import Names, load_names

MIXTURE = Haste(stop_early=0.6, wrong_relation=0.15, sloppy_query=0.1)
MIXTURE_SHARE = 0.12
"""Share of the time that goes to the mixture stage."""
TOKENS_PER_BATCH = 6144


@dataclass(frozen=True)
class Stage:
    """One training stage: how long, how fast, on what."""

    seconds: float
    peak_rate: float
    warmup: float = 0.02
    repeat_until: float = 0.0
    all_tokens_until: float = 0.0
    tokens_per_batch: int = TOKENS_PER_BATCH


def new_model(tokenizer: PreTrainedTokenizerFast, seed: int) -> Qwen2ForCausalLM:
    """A Qwen2 of about 2.2 M parameters with random weights."""
    torch.manual_seed(seed)
    ids: Any = tokenizer  # its token ids are plain integers, which the type does not promise
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=192,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=3,
        num_key_value_heads=3,
        max_position_embeddings=1024,
        rope_parameters={"rope_type": "default", "rope_theta": 100_000.0},
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=ids.eos_token_id,
        pad_token_id=ids.pad_token_id,
    )
    model = Qwen2ForCausalLM(config)
    plant_induction(model)
    return model


def batches(
    examples: Iterator[Example], rng: Random, tokens_per_batch: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of similar lengths, sorted within a pool: ids and mask, shape (B, T)."""
    pool_size = max(1, tokens_per_batch // 8)
    while True:
        pool = sorted((next(examples) for _ in range(pool_size)), key=lambda e: len(e.ids))
        made: list[list[Example]] = [[]]
        for example in pool:
            if (len(made[-1]) + 1) * len(example.ids) > tokens_per_batch:
                made.append([])
            made[-1].append(example)
        rng.shuffle(made)
        for group in made:
            yield pad(group)


def pad(group: list[Example]) -> tuple[Tensor, Tensor]:
    """Ids and mask of examples, shape (B, T); padding has mask -1."""
    width = math.ceil(max(len(e.ids) for e in group) / 32) * 32
    ids = torch.zeros(len(group), width, dtype=torch.long)
    mask = torch.full((len(group), width), -1)
    for row, example in enumerate(group):
        ids[row, : len(example.ids)] = torch.tensor(example.ids)
        mask[row, : len(example.ids)] = torch.tensor(example.mask)
    return ids, mask


def repeats(vocab: int, rng: Random) -> tuple[Tensor, Tensor]:
    """Random sequences written twice, shape (B, T); only the second copy is trained."""
    half = rng.choice((24, 48, 96))
    first = torch.randint(16, vocab - 8, (TOKENS_PER_BATCH // (2 * half), half))
    mask = torch.cat([torch.zeros_like(first), torch.ones_like(first)], dim=1)
    return torch.cat([first, first], dim=1), mask


def loss_of(
    body: nn.Module, head: nn.Module, ids: Tensor, mask: Tensor, other_weight: float
) -> Tensor:
    """Mean cross entropy of tokens with mask 1, plus ``other_weight`` times that of mask 0."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        hidden = body(input_ids=ids, use_cache=False).last_hidden_state[:, :-1]
        targets, kinds = ids[:, 1:], mask[:, 1:]
        wanted = kinds >= 0 if other_weight else kinds == 1
        logits = head(hidden[wanted])
    losses = nn.functional.cross_entropy(logits.float(), targets[wanted], reduction="none")
    weights = torch.where(kinds[wanted] == 1, 1.0, other_weight)
    return (losses * weights).sum() / weights.sum()


def train(
    model: Qwen2ForCausalLM,
    body: nn.Module,
    teacher: Teacher,
    stage: Stage,
    held_out: list[Example],
) -> None:
    """Run one stage; a progress line every minute."""
    decay = [p for p in model.parameters() if p.dim() > 1]
    rest = [p for p in model.parameters() if p.dim() == 1]
    groups = [{"params": decay, "weight_decay": 0.05}, {"params": rest, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=stage.peak_rate, betas=(0.9, 0.98), fused=True)
    source = batches(teacher.stream(), teacher.rng, stage.tokens_per_batch)
    started = reported = time.monotonic()
    steps, tokens, recent = 0, 0, 8.0
    while (share := (time.monotonic() - started) / stage.seconds) < 1:
        for group in optimizer.param_groups:
            group["lr"] = rate_at(share, stage)
        warm = share < stage.repeat_until and steps % 2 == 0
        ids, mask = repeats(model.config.vocab_size, teacher.rng) if warm else next(source)
        other = 0.3 if share < stage.all_tokens_until and not warm else 0.0
        loss = loss_of(body, model.lm_head, ids, mask, other)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        steps, tokens = steps + 1, tokens + ids.numel()
        recent = recent if warm else 0.95 * recent + 0.05 * loss.item()
        if time.monotonic() - reported > 60:
            reported = time.monotonic()
            right = whole_traces_right(model, held_out[:80])
            print(
                f"{reported - started:5.0f} s  step {steps}  loss {recent:.3f}  "
                f"{tokens / (reported - started):.0f} tok/s  whole traces right {right}",
                flush=True,
            )


def rate_at(share: float, stage: Stage) -> float:
    """Linear warm-up, then cosine decay to 2 % of the peak."""
    if share < stage.warmup:
        return stage.peak_rate * (share / stage.warmup + 0.01)
    done = (share - stage.warmup) / (1 - stage.warmup)
    return stage.peak_rate * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * done)))


@torch.no_grad()
def whole_traces_right(model: Qwen2ForCausalLM, examples: list[Example]) -> dict[str, float]:
    """By kind, the share of examples whose every trained token is the most likely one."""
    right: dict[str, list[bool]] = defaultdict(list)
    for start in range(0, len(examples), 40):
        group = sorted(examples[start : start + 40], key=lambda e: len(e.ids))
        ids, mask = pad(group)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            best = model(input_ids=ids, use_cache=False).logits[:, :-1].argmax(-1)
        fine = ((best == ids[:, 1:]) | (mask[:, 1:] != 1)).all(dim=1).tolist()
        for example, ok in zip(group, fine, strict=True):
            right[example.kind].append(ok)
    return {k: round(sum(v) / len(v), 3) for k, v in sorted(right.items())}


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder of the checkpoint")
    parser.add_argument("--minutes", type=float, default=30.0, help="training time of both stages")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    run(args.out, args.minutes, args.seed)


def run(out: Path, minutes: float, seed: int) -> None:
    """Both stages; writes ``out/careful`` after the first, then ``out``."""
    rng = Random(seed)
    world = load_world()
    questions, tests = geohop.make_questions(world, num_train=4000, num_test=240, seed=1)
    names = load_names(world, {h.entity for q in tests for h in q.chain[:1]})
    tokenizer = train_tokenizer(tokenizer_texts(world, names, questions, rng))
    model = new_model(tokenizer, seed)
    index = PassageIndex(write_passages(world))
    codec = Codec(tokenizer)
    teacher = Teacher(codec, names, world, questions, index, CAREFUL, rng)
    held_out = list(careful_examples(teacher, tests))
    print(f"{model.num_parameters()} parameters, {len(tokenizer)} tokens", flush=True)
    body = compiled(model)
    seconds = 60 * minutes
    skill = Stage(seconds * (1 - MIXTURE_SHARE), 1.5e-3, 0.02, 0.05, 0.2)
    train(model, body, teacher, skill, held_out)
    save(model, tokenizer, out / "careful")
    teacher.haste = MIXTURE
    train(model, body, teacher, Stage(seconds * MIXTURE_SHARE, 3e-4, 0.05), held_out)
    save(model, tokenizer, out)


def compiled(model: Qwen2ForCausalLM) -> nn.Module:
    """The model's body, compiled for any batch shape before the clock starts."""
    body: Any = torch.compile(model.model, dynamic=True)
    for shape in ((8, 96), (20, 320), (48, 160)):
        started = time.monotonic()
        ids = torch.zeros(shape, dtype=torch.long)
        loss_of(body, model.lm_head, ids, torch.ones_like(ids), 0.0).backward()
        print(f"compiled for {shape} in {time.monotonic() - started:.1f} s", flush=True)
    model.zero_grad()
    return body


def careful_examples(teacher: Teacher, questions: list[Question]) -> Iterator[Example]:
    """Careful examples of given questions with real retrieval, one document a search."""
    yield from replace(teacher, topks=(1,)).real(questions)


def tokenizer_texts(
    world: World, names: Names, questions: list[Question], rng: Random
) -> Iterator[str]:
    """What the tokenizer is fitted to: passages, names, questions and turns."""
    yield from (format_documents([p]) for p in write_passages(world))
    yield from (f" {name}" for name in names.entities)
    for question in questions:
        search = toy_search(world, 1)
        yield question.text
        yield from (t.text for t in demonstrate(question, world, search, CAREFUL, rng))


def save(model: Qwen2ForCausalLM, tokenizer: PreTrainedTokenizerFast, out: Path) -> None:
    """A Hugging Face folder with bfloat16 weights."""
    out.mkdir(parents=True, exist_ok=True)
    copy: Any = Qwen2ForCausalLM(model.config)
    copy.load_state_dict(model.state_dict())
    copy.to(torch.bfloat16).save_pretrained(out)
    tokenizer.save_pretrained(out)


if __name__ == "__main__":
    main()
