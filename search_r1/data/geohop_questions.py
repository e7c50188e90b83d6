"""GeoHop questions: one to three hops over a :class:`World`, and comparisons of two cities.

A question is a chain of hops; each hop names an entity, asks it for a relation, and gets a value
that is the entity of the next hop. Every value is stated by the passage of its entity, so a reader
who looks up each entity by name finds the answer, and one who stops early does not: an answer that
an earlier passage of the chain already gives is never asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from search_r1.data.geohop_world import World

KINDS = ("1", "2", "3", "comparison")
MIN_RATIO = 1.3
"""Compared cities differ at least by this factor in population."""

CITY_RELATIONS = ("country", "time_zone", "population", "nearest")
COUNTRY_RELATIONS = ("continent", "capital", "currency", "calling_code", "domain")
LABELS: dict[str, str] = {
    "country": "country",
    "time_zone": "time zone",
    "population": "population",
    "nearest": "nearest city",
    "continent": "continent",
    "capital": "capital",
    "currency": "currency",
    "calling_code": "calling code",
    "domain": "internet domain",
}
"""The words for each relation."""

ASK: dict[str, tuple[str, ...]] = {
    "country": ("Which country is {x} in?", "In which country does {x} lie?"),
    "time_zone": ("Which time zone does {x} use?", "What is the time zone of {x}?"),
    "population": ("How many people live in {x}?", "What is the population of {x}?"),
    "nearest": ("Which city is nearest to {x}?", "What is the closest city to {x}?"),
    "continent": ("On which continent is {x}?", "Which continent does {x} belong to?"),
    "capital": ("What is the capital of {x}?", "Which city is the capital of {x}?"),
    "currency": ("Which currency is used in {x}?", "What is the currency of {x}?"),
    "calling_code": ("What is the calling code of {x}?", "Which calling code does {x} have?"),
    "domain": ("What is the internet domain of {x}?", "Which internet domain does {x} use?"),
}
COUNTRY_OF = ("the country of {x}", "the country where {x} lies", "the country that {x} is in")
CAPITAL_OF = "the capital of {x}"
COMPARE: dict[str, tuple[str, ...]] = {
    "more": ("Which city has more people, {x} or {y}?", "Which city is larger, {x} or {y}?"),
    "fewer": ("Which city has fewer people, {x} or {y}?", "Which city is smaller, {x} or {y}?"),
}


@dataclass(frozen=True, slots=True)
class Hop:
    """One lookup: the passage of ``entity`` states ``value`` as its ``relation``."""

    entity: str
    relation: str
    value: str


@dataclass(frozen=True, slots=True)
class Question:
    """A question with its one answer and the chain of lookups that leads to it.

    ``direction`` is ``more`` or ``fewer`` for a comparison and empty otherwise.
    """

    kind: str
    text: str
    answer: str
    chain: tuple[Hop, ...]
    direction: str = ""

    @property
    def key(self) -> tuple[str, ...]:
        """What makes two questions the same whatever their wording."""
        return (self.kind, self.direction, *(f"{h.entity}/{h.relation}" for h in self.chain))


def ask_one(world: World, entity: str, relation: str, rng: Random) -> Question | None:
    """A one-hop question about a city or a country, or None where the fact is missing."""
    value = world.fact(entity, relation)
    if not value or value == entity:
        return None
    text = rng.choice(ASK[relation]).format(x=entity)
    return Question("1", text, value, (Hop(entity, relation, value),))


def ask_two(world: World, city: str, relation: str, rng: Random) -> Question | None:
    """City -> country -> a fact of the country."""
    country = world.fact(city, "country")
    value = world.fact(country, relation)
    if not value or value in (city, country):
        return None
    noun = rng.choice(COUNTRY_OF).format(x=city)
    chain = (Hop(city, "country", country), Hop(country, relation, value))
    return Question("2", rng.choice(ASK[relation]).format(x=noun), value, chain)


def ask_three(world: World, city: str, relation: str, rng: Random) -> Question | None:
    """City -> country -> capital -> a fact of the capital."""
    country = world.fact(city, "country")
    capital = world.fact(country, "capital")
    value = world.fact(capital, relation)
    early = {city, country, capital, *(world.fact(city, r) for r in CITY_RELATIONS)}
    if capital not in world.city or not value or value in early or city == capital:
        return None
    noun = CAPITAL_OF.format(x=rng.choice(COUNTRY_OF).format(x=city))
    chain = (
        Hop(city, "country", country),
        Hop(country, "capital", capital),
        Hop(capital, relation, value),
    )
    return Question("3", rng.choice(ASK[relation]).format(x=noun), value, chain)


def ask_comparison(world: World, first: str, second: str, rng: Random) -> Question | None:
    """Which of two cities has more, or fewer, people; None where they are too close to call."""
    a, b = world.city[first], world.city[second]
    low, high = sorted((a.people, b.people))
    if first == second or a.population == b.population or high < MIN_RATIO * max(low, 1):
        return None
    direction = rng.choice(("more", "fewer"))
    larger, smaller = (first, second) if a.people > b.people else (second, first)
    chain = (
        Hop(first, "population", a.population),
        Hop(second, "population", b.population),
    )
    text = rng.choice(COMPARE[direction]).format(x=first, y=second)
    return Question(
        "comparison", text, larger if direction == "more" else smaller, chain, direction
    )


def draw(
    world: World, kind: str, cities: Sequence[str], countries: Sequence[str], rng: Random
) -> Question:
    """A random question of a kind that starts from one of the given entities.

    Raises ValueError where a thousand draws give none.
    """
    for _ in range(1000):
        question = _try(world, kind, cities, countries, rng)
        if question is not None:
            return question
    raise ValueError(f"no question of kind {kind!r} from {len(cities)} cities; add cities")


def _try(
    world: World, kind: str, cities: Sequence[str], countries: Sequence[str], rng: Random
) -> Question | None:
    city = rng.choice(cities)
    if kind == "1":
        if countries and rng.random() < 0.4:
            return ask_one(world, rng.choice(countries), rng.choice(COUNTRY_RELATIONS), rng)
        return ask_one(world, city, rng.choice(CITY_RELATIONS), rng)
    if kind == "2":
        return ask_two(world, city, rng.choice(COUNTRY_RELATIONS), rng)
    if kind == "3":
        return ask_three(world, city, rng.choice(CITY_RELATIONS[1:]), rng)
    if kind == "comparison":
        return ask_comparison(world, city, rng.choice(cities), rng)
    raise ValueError(f"unknown kind {kind!r}; known: {', '.join(KINDS)}")
