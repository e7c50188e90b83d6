"""Demonstrations: how a teacher who knows the facts would search, carefully or in haste.

A careful trace looks up each entity of the chain by name and answers when the chain is complete. A
hasty one goes wrong on purpose at one or more steps:

* it stops early and answers with what the last passage gave;
* it reads the wrong relation from the last passage;
* it sends a long, sloppy query instead of a name.

Each is drawn by a coin of its own at each step (:class:`Haste`), never by the question, so a policy
trained on the mixture has the careful continuation in its samples and reinforcement learning has
something to choose. The words a trace thinks are the same either way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from search_r1.data.geohop_questions import (
    CITY_RELATIONS,
    COUNTRY_RELATIONS,
    LABELS,
    Hop,
    Question,
)
from search_r1.data.geohop_world import World, city_text, country_text
from search_r1.types import Document

Search = Callable[[str, Random], list[Document]]
"""Query text -> documents, best first."""


@dataclass(frozen=True, slots=True)
class Haste:
    """How often the teacher errs, per step: probabilities in [0, 1]."""

    stop_early: float = 0.0
    wrong_relation: float = 0.0
    sloppy_query: float = 0.0


CAREFUL = Haste()


@dataclass(frozen=True, slots=True)
class Turn:
    """What the teacher writes in one turn, and the documents that answer it (None at the end)."""

    text: str
    documents: tuple[Document, ...] | None


def search_turn(thought: str, query: str, documents: Sequence[Document]) -> Turn:
    """A turn that searches. The space before a name keeps it in one tokenization everywhere."""
    return Turn(f"<think> {thought}</think><search> {query}</search>", tuple(documents))


def answer_turn(thought: str, answer: str) -> Turn:
    """The turn that ends a trace."""
    return Turn(f"<think> {thought}</think><answer> {answer}</answer>", None)


def demonstrate(
    question: Question, world: World, search: Search, haste: Haste, rng: Random
) -> list[Turn]:
    """One trace for a question.

    ``world`` must hold every entity that ``search`` can return first.
    """
    turns: list[Turn] = []
    thought = "plan " + ", ".join(LABELS[h.relation] for h in question.chain)
    seen = ""
    for i, hop in enumerate(question.chain):
        query = hop.entity
        sloppy = rng.random() < haste.sloppy_query
        if sloppy:
            query = question.text.rstrip("?") if i == 0 else f"{LABELS[hop.relation]} of {query}"
        documents = search(query, rng)
        turns.append(search_turn(thought, query, documents))
        found = hop
        if sloppy and all(d.title != hop.entity for d in documents):
            found = misread(hop, documents, world)
        last = i == len(question.chain) - 1
        if last and rng.random() < haste.wrong_relation:
            found = read_wrong(found, world, rng)
        thought = think(question, found, seen)
        stop = rng.random() < haste.stop_early
        if last or found is not hop or stop:
            turns.append(answer_turn(thought, conclude(question, found, seen, rng)))
            break
        seen = found.value if question.kind == "comparison" else ""
    return turns


def think(question: Question, found: Hop, seen: str) -> str:
    """What is noted down after reading: the relation and its value, and what a comparison gives.

    ``seen`` is the population of the first city where this is the second, else empty.
    """
    note = f"{LABELS[found.relation]} {found.value}"
    if is_compared(question, found, seen):
        return f"{note} {'more' if _people(found.value) > _people(seen) else 'less'} than {seen}"
    return note


def conclude(question: Question, found: Hop, seen: str, rng: Random) -> str:
    """The answer that the last note supports; a guess where two cities were not compared."""
    if question.kind != "comparison":
        return found.value
    if is_compared(question, found, seen):
        return question.chain[is_second(question, found, seen)].entity
    return rng.choice(question.chain).entity


def is_compared(question: Question, found: Hop, seen: str) -> bool:
    """Whether two populations are at hand."""
    return question.kind == "comparison" and bool(seen) and found.relation == "population"


def is_second(question: Question, found: Hop, seen: str) -> bool:
    """Whether the second city of a comparison is the answer."""
    return (_people(found.value) > _people(seen)) == (question.direction == "more")


def misread(hop: Hop, documents: Sequence[Document], world: World) -> Hop:
    """What a hasty reader takes from the first document where the right one is missing."""
    title = documents[0].title
    relations = CITY_RELATIONS if title in world.city else COUNTRY_RELATIONS
    relation = hop.relation if hop.relation in relations else relations[0]
    return Hop(title, relation, world.fact(title, relation) or title)


def read_wrong(hop: Hop, world: World, rng: Random) -> Hop:
    """Another relation of the same entity."""
    relations = CITY_RELATIONS if hop.entity in world.city else COUNTRY_RELATIONS
    others = [r for r in relations if r != hop.relation and world.fact(hop.entity, r)]
    relation = rng.choice(others)
    return Hop(hop.entity, relation, world.fact(hop.entity, relation))


def toy_search(world: World, topk: int) -> Search:
    """Retrieval over an invented world: a name finds its passage, mostly first, among others.

    A longer query finds the passage of an entity it names only half of the time.
    """
    titles = [*world.country, *world.city]

    def search(query: str, rng: Random) -> list[Document]:
        target = query if query in titles else None
        if target is None and rng.random() < 0.5:
            target = max((t for t in titles if t in query), key=len, default=None)
        others = [t for t in titles if t != target]
        found = rng.sample(others, topk - 1 if target is not None else topk)
        if target is not None:
            found.insert(0 if rng.random() < 0.8 else rng.randrange(topk), target)
        return [passage(world, title, rng) for title in found]

    return search


def passage(world: World, title: str, rng: Random) -> Document:
    """The passage of an entity in a random phrasing."""
    variant = rng.randrange(3)
    if title in world.city:
        return Document("", title, city_text(world.city[title], variant))
    return Document("", title, country_text(world.country[title], variant))


def _people(population: str) -> float:
    number, unit = population.split()
    return float(number) * (1000.0 if unit == "million" else 1.0)
