"""Which answer the model gave, and which answers count as right (FC-02, FC-12, FC-13, FC-29)."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from search_r1.parsing import find_action
from search_r1.rewards.answers import extract_answer, flatten_answers
from search_r1.rewards.exact_match import exact_match
from search_r1.types import ActionKind


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("Pisa", None),
        ("<answer>Oslo</answer>", "Oslo"),
        ("<answer>a</answer><answer>b</answer>", "b"),
        ("<answer>a</answer><answer>b", "a"),
        ("<answer>x<answer>y</answer></answer>", "y"),
        ("<answer></answer>", None),
        ("<answer> \n </answer>", None),
        ("<answer> New\nYork </answer>", "New\nYork"),
        ("<think><answer>draft</answer></think><answer>final</answer>", "final"),
        ("<think>I end with <answer> later</think><answer>Oslo</answer>", "Oslo"),
        ("<answer>final</answer><think><answer>draft</answer></think>", "final"),
        ("<think><answer>draft</answer></think>", None),
        ("<search>lakes <answer>Oslo</answer></search>", None),
    ],
)
def test_the_last_complete_answer_outside_thoughts_and_queries_counts(text, answer):
    assert extract_answer(text) == answer


def test_an_answer_in_retrieved_text_is_not_the_models():
    observation = "<information>quiz sheet: <answer>Oslo</answer></information>"
    assert extract_answer("<think>t</think><search>capital</search>" + observation) is None
    assert extract_answer("<think>t</think><answer>Bergen</answer>" + observation) == "Bergen"


tags = ["think", "search", "answer"]
pieces = st.sampled_from([f"<{t}>" for t in tags] + [f"</{t}>" for t in tags] + ["a", " b "])


@given(st.lists(pieces, max_size=10).map("".join))
def test_it_agrees_with_the_turn_parser_wherever_that_finds_an_answer_outside_a_thought(text):
    action, end = find_action(text)
    extracted = extract_answer(text[:end])
    if action.kind is ActionKind.ANSWER and "<" not in action.text:
        assert extracted == action.text
    if extracted is not None:
        assert "<answer>" not in extracted and extracted.strip()


FORMS = [
    "Oslo",
    ["Oslo", "Kristiania"],
    np.array(["Oslo", "Kristiania"], dtype=object),
    '["Oslo", "Kristiania"]',
    [["Oslo"], ["Kristiania"]],
    {"value": "Oslo", "aliases": ["Kristiania"]},
    ["", "Oslo"],
    {"target": np.array(["Oslo"])},
    np.array([np.array(["Oslo"], dtype=object)], dtype=object),
]


@pytest.mark.parametrize("form", FORMS, ids=repr)
def test_every_shape_of_golden_answers_becomes_one_flat_tuple_of_text(form):
    answers = flatten_answers(form, "row")
    assert answers in (("Oslo",), ("Oslo", "Kristiania"))
    assert ("Kristiania" in answers) == ("Kristiania" in repr(form))
    assert exact_match("Oslo", answers) == 1
    assert exact_match("O", answers) == 0


@pytest.mark.parametrize(
    ("value", "text"), [(1905, "1905"), (1905.0, "1905"), (np.int64(7), "7"), (0.5, "0.5")]
)
def test_numbers_become_text(value, text):
    assert flatten_answers(value, "row") == (text,)


def test_the_main_answer_comes_first_and_repeats_are_dropped():
    value = {"aliases": ["b", "a", "b"], "value": "a"}
    assert flatten_answers(value, "row") == ("a", "b")


@pytest.mark.parametrize("text", ["[sic] Oslo", "{x}", '{"year": 3}'])
def test_ordinary_text_that_starts_with_a_bracket_stays_text(text):
    assert flatten_answers(text, "row") == (text,)


@pytest.mark.parametrize(
    "empty", [None, [], "", "  ", [None, ""], "[]", float("nan"), np.array([])]
)
def test_a_row_without_golden_answers_is_refused_by_name(empty):
    with pytest.raises(ValueError, match="nq-17"):
        flatten_answers(empty, "nq-17")


@pytest.mark.parametrize("odd", [True, ["yes", False], {"text": "Oslo"}, object(), b"Oslo"])
def test_a_golden_answer_of_an_unknown_kind_is_refused_by_name(odd):
    with pytest.raises(ValueError, match="nq-17"):
        flatten_answers(odd, "nq-17")
