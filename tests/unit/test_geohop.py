"""GeoHop: facts, passages, questions, and the files built from them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from random import Random

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from search_r1.data import geohop
from search_r1.data.geohop_questions import KINDS, Question, ask_three, ask_two, draw
from search_r1.data.geohop_world import (
    City,
    Country,
    World,
    fold,
    load_world,
    round_population,
    write_passages,
)

SMALL = load_world(400)
CITIES = [c.name for c in SMALL.cities]
COUNTRIES = [c.name for c in SMALL.countries]


def city(name: str, country: str = "Norland", people: int = 5000, nearest: str = "Aby") -> City:
    return City(name, country, "Europe/Aby", round_population(people), nearest, people)


def toy(*cities: City) -> World:
    return World((Country("Norland", "Europe", "Aby", "Krone", "+99", ".nl"),), cities)


def build(path: Path, **changes: int) -> dict[str, object]:
    sizes = {"num_cities": 400, "num_train": 80, "num_test": 40, "seed": 3} | changes
    return geohop.build(path, **sizes, template="bare")


def rows(path: Path) -> list[dict[str, object]]:
    return pq.read_table(path).to_pylist()


def test_the_quickstart_corpus_has_at_least_3000_passages_with_unique_titles() -> None:
    titles = [fold(p.title) for p in write_passages(load_world())]
    assert len(titles) >= 3000
    assert len(set(titles)) == len(titles)


def test_every_capital_with_a_passage_is_a_city_of_its_country() -> None:
    found = 0
    for country in SMALL.countries:
        if country.capital in SMALL.city:
            found += 1
            assert SMALL.city[country.capital].country == country.name
    assert found > 200


def test_no_city_shares_its_name_with_a_country() -> None:
    assert not {fold(c) for c in CITIES} & {fold(c) for c in COUNTRIES}


def test_passages_stay_short_and_state_every_fact_of_a_city() -> None:
    for passage in write_passages(SMALL):
        assert 3 <= len(passage.text.split()) <= 40
        if passage.title in SMALL.city:
            facts = SMALL.city[passage.title]
            for value in (facts.country, facts.time_zone, facts.population, facts.nearest):
                assert value in passage.text


def test_more_cities_than_geonames_has_is_an_error_that_says_how_many_there_are() -> None:
    with pytest.raises(ValueError, match=r"only .* names are usable"):
        load_world(10**6)


@given(st.sampled_from(KINDS), st.integers(0, 10**9))
def test_every_drawn_question_is_answered_by_its_passages(kind: str, seed: int) -> None:
    question = draw(SMALL, kind, CITIES, COUNTRIES, Random(seed))
    geohop.check([question], write_passages(SMALL))
    assert question.answer and question.text.endswith("?")
    assert question.text.count("?") == 1


@given(st.integers(0, 10**9))
def test_stopping_one_passage_early_never_gives_the_answer_of_a_chain(seed: int) -> None:
    for kind in ("2", "3"):
        question = draw(SMALL, kind, CITIES, COUNTRIES, Random(seed))
        assert question.answer not in {hop.value for hop in question.chain[:-1]}
        assert question.answer not in question.text


def test_a_chain_that_returns_to_where_it_began_is_not_asked() -> None:
    world = toy(city("Aby", nearest="Bo"), city("Bo"))
    assert ask_two(world, "Aby", "capital", Random(0)) is None
    assert ask_three(world, "Aby", "nearest", Random(0)) is None
    assert ask_three(world, "Bo", "nearest", Random(0)) is None


def test_cities_of_nearly_equal_size_are_never_compared() -> None:
    world = toy(city("Aby", people=52_000), city("Bo", people=50_000))
    with pytest.raises(ValueError, match="no question"):
        draw(world, "comparison", ["Aby", "Bo"], [], Random(0))


@given(st.integers(1, 40_000_000))
def test_a_rounded_population_stays_within_a_tenth_or_a_thousand(people: int) -> None:
    stated = geohop.parse_population(round_population(people))
    assert abs(stated - people) <= max(1000, 0.05 * people)


def test_a_wrong_answer_a_broken_chain_and_a_missing_passage_are_found() -> None:
    passages = write_passages(SMALL)
    good: Question = draw(SMALL, "2", CITIES, COUNTRIES, Random(5))
    geohop.check([good], passages)
    with pytest.raises(ValueError, match="expected 'nowhere'"):
        geohop.check([replace(good, answer="nowhere")], passages)
    with pytest.raises(ValueError, match="does not state"):
        geohop.check([good], [p for p in passages if p.title != good.chain[0].entity])
    with pytest.raises(ValueError, match="occurs twice"):
        geohop.check([good], [*passages, passages[0]])


def test_the_same_arguments_write_the_same_bytes_and_another_seed_does_not(tmp_path: Path) -> None:
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        build(tmp_path / name, seed=seed)
    for file in ("corpus.jsonl", "train.parquet", "test.parquet"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()
    assert (tmp_path / "a" / "test.parquet").read_bytes() != (
        tmp_path / "c" / "test.parquet"
    ).read_bytes()


def test_no_entity_that_starts_a_test_question_starts_a_train_question(tmp_path: Path) -> None:
    build(tmp_path)
    starts = {
        split: {
            row["extra_info"]["chain"][0]["entity"] for row in rows(tmp_path / f"{split}.parquet")
        }
        for split in ("train", "test")
    }
    assert starts["train"] and not starts["train"] & starts["test"]


def test_rows_have_the_verl_schema_and_the_kinds_are_balanced(tmp_path: Path) -> None:
    report = build(tmp_path)
    assert report["test"] == dict.fromkeys(KINDS, 10)
    for i, row in enumerate(rows(tmp_path / "test.parquet")):
        assert row["data_source"] == "geohop"
        assert row["reward_model"]["style"] == "rule"
        assert len(row["reward_model"]["ground_truth"]["target"]) == 1
        info = row["extra_info"]
        assert (info["split"], info["index"]) == ("test", i)
        assert row["prompt"] == [{"role": "user", "content": info["question"]}]


def test_corpus_rows_hold_a_quoted_title_a_newline_and_the_text(tmp_path: Path) -> None:
    build(tmp_path)
    lines = (tmp_path / "corpus.jsonl").read_text(encoding="utf-8").splitlines()
    for i, line in enumerate(lines):
        row = json.loads(line)
        assert row["id"] == str(i)
        title, _, text = row["contents"].partition("\n")
        assert title.startswith('"') and title.endswith('"') and text


def test_an_unknown_template_is_an_error_that_lists_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="search_r1"):
        geohop.build(tmp_path, num_cities=400, num_train=4, num_test=4, template="nope")
