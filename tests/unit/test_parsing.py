"""One turn of text asks for exactly one action, and nothing behind it counts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from search_r1.parsing import find_action
from search_r1.types import ActionKind

SEARCH, ANSWER, INVALID = ActionKind.SEARCH, ActionKind.ANSWER, ActionKind.INVALID


@pytest.mark.parametrize(
    ("text", "kind", "body"),
    [
        # FC-12
        (
            "<think>t</think><answer>Oslo</answer> then <search>fjord</search>",
            ANSWER,
            "Oslo",
        ),
        ("<think>I will write <search> soon</think><search>lakes</search>", SEARCH, "lakes"),
        # FC-13
        ("<think><answer>draft</answer></think><answer>final</answer>", ANSWER, "final"),
        ("<answer>x<answer>y</answer></answer>", ANSWER, "y"),
        # FC-30
        ("<search>東京で一番高い塔</search>", SEARCH, "東京で一番高い塔"),
        ("plain <search> q\n</search>", SEARCH, "q"),
    ],
)
def test_a_turn_with_a_complete_action_gives_that_action(text, kind, body):
    action, _ = find_action(text)
    assert (action.kind, action.text) == (kind, body)


@pytest.mark.parametrize(
    "text",
    [
        "no tags at all",
        "<search></search>",
        "<search> \n </search>",
        "<answer>  </answer>",
        "<search>abc",
        "<Search>abc</Search>",
        "<search>lakes <answer>Oslo</answer></search>",
        "<search>a</answer>",
        "</answer>",
    ],
)
def test_a_turn_without_a_usable_action_is_invalid(text):
    assert find_action(text)[0].kind is INVALID


def test_a_mismatched_close_never_gives_a_query_with_a_tag_in_it():
    action, _ = find_action("<search>a</answer><search>b</search>")
    assert (action.kind, action.text) == (SEARCH, "b")


def test_the_end_position_cuts_invented_documents_away():
    text = (
        "<search>tallest lighthouse</search>\n<information>Doc 1 made up</information>"
        "\n<answer>Pharos</answer>"
    )
    action, end = find_action(text)
    assert action.text == "tallest lighthouse"
    assert text[:end] == "<search>tallest lighthouse</search>"


@given(st.text(alphabet="ab <>/searchnw\n", max_size=80))
def test_a_query_or_answer_never_contains_an_action_tag(text):
    action, end = find_action(text)
    assert 0 <= end <= len(text)
    if action.kind is not INVALID:
        assert not any(f"<{s}{t}>" in action.text for s in ("", "/") for t in ("search", "answer"))
