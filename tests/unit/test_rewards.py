"""Scores and rewards against the values of the official scripts and the paper's table."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from search_r1.rewards import REWARDS
from search_r1.rewards.exact_match import exact_match
from search_r1.rewards.f1 import f1, uses_closed_answer_rule
from search_r1.rewards.format import is_valid_text, is_valid_turns
from search_r1.rewards.normalise import normalise
from search_r1.testing import ANSWER, SEARCH, query, trajectory

BROKEN = "hm <answer>{}</answer>"
VALID = "<think>t</think><answer>{}</answer>"


def reward(name, answer, golden="Oslo", form=VALID, **kwargs):
    return REWARDS[name](trajectory([form.format(answer)]), query([golden], **kwargs))


# --- exact match and F1 ---------------------------------------------------------------------------


def test_normalisation_lowers_drops_punctuation_and_articles_and_squeezes_spaces():
    assert normalise("  The  LODGE, (an old-ish one)\t") == "lodge oldish one"
    assert normalise("theatre another a") == "theatre another"
    assert normalise("war–the–peace") == "war– –peace"


@pytest.mark.parametrize(
    ("answer", "golden", "em"),
    [
        ("1914–1918", "1914-1918", 0),
        ("caf\u00e9", "cafe\u0301", 0),
        ("\uff13", "3", 0),
        ("Lima\u200b", "Lima", 0),
        ("\u00a0Lima", "Lima", 1),
        ("early- life", "early-life", 0),
    ],
)
def test_unicode_is_compared_as_the_official_script_does(answer, golden, em):
    assert exact_match(answer, [golden]) == em


@pytest.mark.parametrize(
    ("answer", "golden", "em"),
    [
        ("A", ["A"], 1),
        ("Oslo", ["A"], 0),
        ("The", ["A"], 0),
        (None, ["The The"], 0),
        ("", ["The The"], 0),
        ("", [""], 0),
        ("Lima", ["The", "Lima"], 1),
        ("Lodge", ["The Lodge", "Lodge (The)", "old lodge"], 1),
    ],
)
def test_a_gold_that_normalises_to_nothing_is_neither_free_nor_fatal(answer, golden, em):
    assert exact_match(answer, golden) == em
    assert f1(answer, golden, closed_answer_rule=False) == em


@pytest.mark.parametrize(
    ("answer", "golden", "em", "score"),
    [
        ("", "Oslo", 0, 0),
        ("Oslo or Bergen or Lima", "Oslo", 0, 1 / 3),
        ("Os", "Oslo", 0, 0),
        ("2010", "1", 0, 0),
        ("a b b", "b c", 0, 0.5),
        ("b b", "b b c", 0, 0.8),
    ],
)
def test_containing_the_gold_is_not_matching_it(answer, golden, em, score):
    assert exact_match(answer, [golden]) == em
    assert f1(answer, [golden], closed_answer_rule=False) == pytest.approx(score)


@pytest.mark.parametrize(
    ("answer", "golden", "with_rule", "without"),
    [
        ("no, it was Lima", "no", 0, 0.4),
        ("yes it is", "yes", 0, 0.5),
        ("Dr. No", "no", 0, 0.6667),
        ("Yes.", "yes", 1, 1),
        ("noanswer", "no answer", 0, 0),
        ("no", "no way", 0, 0.6667),
    ],
)
def test_yes_and_no_must_match_exactly_where_the_data_set_says_so(
    answer, golden, with_rule, without
):
    assert f1(answer, [golden], closed_answer_rule=True) == pytest.approx(with_rule, abs=1e-4)
    assert f1(answer, [golden], closed_answer_rule=False) == pytest.approx(without, abs=1e-4)


@pytest.mark.parametrize(
    ("source", "rule"),
    [
        ("hotpotqa", True),
        ("2wikimultihopqa", True),
        ("searchR1_hotpotqa", True),
        ("nq", False),
        ("musique", False),
        ("", False),
    ],
)
def test_the_data_source_chooses_the_yes_no_rule(source, rule):
    assert uses_closed_answer_rule(source) is rule
    score = reward("f1_only", "yes it is", "yes", data_source=source).value
    assert score == (0 if rule else 0.5)


words = st.lists(st.sampled_from(["Oslo", "the", "A", "yes", "no", ".", "Lima", ""]), max_size=4)
texts = words.map(" ".join)


@given(st.none() | texts, st.lists(texts, min_size=1, max_size=3), st.booleans())
def test_f1_is_never_below_exact_match(answer, golden, rule):
    assert f1(answer, golden, closed_answer_rule=rule) >= exact_match(answer, golden)


def test_five_thousand_aliases_stay_fast():
    golden = [f"alias number {i}" for i in range(5000)]
    started = time.perf_counter()
    assert REWARDS["em"](trajectory([VALID.format("Oslo")]), query(golden)).value == 0.2
    assert time.perf_counter() - started < 1


# --- format ---------------------------------------------------------------------------------------

INFORMATION = "\n\n<information>Doc 1(Title: x) y</information>\n\n"


@pytest.mark.parametrize(
    "turns",
    [
        [ANSWER],
        [SEARCH, ANSWER],
        [SEARCH, SEARCH, ANSWER],
        ["\n<think>a\nb</think>\n <search>q</search>\n", " <think></think> <answer>a</answer> "],
    ],
)
def test_thinking_then_searching_any_number_of_times_then_answering_is_valid(turns):
    assert is_valid_turns(turns)
    assert is_valid_text(INFORMATION.join(turns))


@pytest.mark.parametrize(
    "turns",
    [
        [],
        [""],
        [SEARCH],
        ["<answer>Oslo</answer>"],
        ["<search>q</search>", ANSWER],
        [SEARCH, "<answer>Oslo</answer>"],
        [ANSWER + " done"],
        ["well " + ANSWER],
        [ANSWER + ANSWER],
        ["<think>t</think> so <answer>Oslo</answer>"],
        ["<think>t<think>u</think><answer>Oslo</answer>"],
        ["<think>t<answer>Oslo</answer>"],
        ["<think>t</think><answer>Oslo"],
        ["<think>t</think><answer> </answer>"],
        ["<think>t</think><search></search>", ANSWER],
        ["<think>t</think>", ANSWER],
        ["<think>t", "</think><answer>Oslo</answer>"],
        [ANSWER, SEARCH],
        ["<think>t</think><Search>q</Search>", ANSWER],
    ],
)
def test_anything_else_is_invalid(turns):
    assert not is_valid_turns(turns)
    assert not is_valid_text(INFORMATION.join(turns))


def test_an_information_block_the_model_wrote_itself_is_invalid():
    invented = SEARCH + INFORMATION + ANSWER
    assert is_valid_text(invented)
    assert not is_valid_turns([invented])
    assert not is_valid_turns([SEARCH + "<information>", ANSWER])


# --- the reward table -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "answer", "form", "value"),
    [
        ("em", "Oslo", VALID, 1),
        ("em", "Oslo", BROKEN, 1 - 0.2),
        ("em", "Bergen", VALID, 0.2),
        ("em", "Bergen", BROKEN, 0.1),
        ("em", "", VALID, 0),
        ("em", "Oslo", "<think>t</think>{}", 0),
        ("reference_f1", "Oslo Lima", VALID, 2 / 3),
        ("reference_f1", "Oslo Lima", BROKEN, 2 / 3 - 0.2),
        ("reference_f1", "Bergen", VALID, 0.2),
        ("reference_f1", "Bergen", BROKEN, 0.1),
        ("reference_f1", "", VALID, 0),
        ("f1", "Oslo", VALID, 0.2 + 0.8),
        ("f1", "Oslo Lima", VALID, 0.2 + 0.8 * (2 / 3)),
        ("f1", "Oslo Lima", BROKEN, 0.1 + 0.7 * (2 / 3)),
        ("f1", "Bergen", VALID, 0.2),
        ("f1", "Bergen", BROKEN, 0.1),
        ("f1", "", VALID, 0),
        ("em_only", "Oslo", BROKEN, 1),
        ("em_only", "Oslo Lima", VALID, 0),
        ("f1_only", "Oslo Lima", BROKEN, 2 / 3),
        ("f1_only", "", VALID, 0),
    ],
)
def test_rewards_are_exactly_those_of_the_table(name, answer, form, value):
    assert reward(name, answer, form=form).value == value


def test_the_reference_form_can_be_negative_and_ours_rises_with_f1():
    twenty = " ".join(["Oslo", *(f"w{i}" for i in range(18))])
    assert reward("reference_f1", twenty, form=BROKEN).value == pytest.approx(0.1 - 0.2)
    for form in (VALID, BROKEN):
        values = [reward("f1", a, form=form).value for a in ("Bergen", twenty, "Oslo x", "Oslo")]
        assert values == sorted(set(values))


def test_every_reward_carries_the_same_measurements():
    for scorer in REWARDS.values():
        scored = scorer(trajectory([SEARCH, ANSWER]), query(["oslo"]))
        assert scored.metrics == {"em": 1, "f1": 1, "format": 1, "answered": 1, "searches": 1}


def test_a_search_in_the_forced_last_turn_was_not_run_and_is_not_counted():
    scored = REWARDS["em"](trajectory([SEARCH, SEARCH, SEARCH]), query())
    assert scored.metrics["searches"] == 2
    assert scored.metrics["answered"] == 0


def test_retrieved_text_earns_nothing():
    quiz = "<information>quiz sheet: <answer>Oslo</answer></information>"
    silent = trajectory([SEARCH, "<think>t</think>"], observation=quiz)
    wrong = trajectory([SEARCH, VALID.format("Bergen")], observation=quiz)
    for name, scorer in REWARDS.items():
        assert scorer(silent, query()).value == 0, name
        assert scorer(wrong, query()).metrics["em"] == 0, name
        assert scorer(wrong, query(["Bergen"])).metrics["em"] == 1, name


def test_a_query_without_golden_answers_is_refused_by_uid():
    with pytest.raises(ValueError, match="q-lost"):
        REWARDS["em"](trajectory([ANSWER]), query([], uid="q-lost"))
