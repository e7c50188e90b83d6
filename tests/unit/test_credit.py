"""Advantages against the golden values, the field's known faults, and the laws they obey."""

import math
import random
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from search_r1.credit import ESTIMATORS, estimate
from search_r1.credit.grouped import advantages_by_row
from search_r1.credit.groups import z_scores
from search_r1.testing import forest

ONE_HIT = [[1, 0.2, 0.2], [0.2, 0.2, 0.2]]
MIXED_AND_SOLVED = [[1, 0, 0], [1, 1, 1]]
NAN = float("nan")


def flat(rows):
    return [value for row in rows for value in row]


@pytest.mark.parametrize(
    ("name", "rewards", "golden"),
    [
        ("inter", ONE_HIT, [2.0412] + [-0.4082] * 5),
        ("grpo", ONE_HIT, [2.0412] + [-0.4082] * 5),
        ("intra", ONE_HIT, [1.1547, -0.5774, -0.5774, 0, 0, 0]),
        ("tree", ONE_HIT, [3.1959, -0.9856, -0.9856] + [-0.4082] * 3),
        ("inter", MIXED_AND_SOLVED, [0.6455, -1.2910, -1.2910] + [0.6455] * 3),
        ("intra", MIXED_AND_SOLVED, [1.1547, -0.5774, -0.5774, 0, 0, 0]),
        ("tree", MIXED_AND_SOLVED, [1.8002, -1.8683, -1.8683] + [0.6455] * 3),
    ],
)
def test_golden_values(name, rewards, golden):
    assert flat(estimate(name, rewards)) == pytest.approx(golden, abs=1e-4)


def test_every_leaf_of_a_forest_keeps_its_own_reward():
    advantages = estimate("tree", forest(rewards=MIXED_AND_SOLVED).rewards())
    assert advantages[0][0] > 0 > advantages[0][1]
    assert len(set(advantages[0])) == 2


def test_a_failed_leaf_has_no_advantage_and_is_in_no_group():
    for missing in (None, NAN):
        for name in ESTIMATORS:
            assert estimate(name, [[1, 1, 1, missing]]) == [[0.0, 0.0, 0.0, None]]
            assert estimate(name, [[missing, missing]]) == [[None, None]]
        healthy = estimate("tree", [[1, 0], [0, 0]])
        assert estimate("tree", [[1, missing, 0], [0, 0]]) == [
            [healthy[0][0], None, healthy[0][1]],
            healthy[1],
        ]


def test_a_group_of_one_gives_zero_not_the_raw_reward():
    for name in ESTIMATORS:
        assert estimate(name, [[1.0]]) == [[0.0]]
        assert estimate(name, [[1.0, None], [None]]) == [[0.0, None], [None]]
    assert estimate("intra", [[1.0], [0.0]]) == [[0.0], [0.0]]


def test_nothing_in_nothing_out():
    assert estimate("tree", []) == []
    assert estimate("tree", [[], []]) == [[], []]


def test_an_infinite_reward_is_an_error_not_a_nan():
    with pytest.raises(ValueError, match="infinite"):
        z_scores([1.0, math.inf])


def test_an_unknown_estimator_names_the_known_ones():
    with pytest.raises(ValueError, match=r"'gae'.*tree, inter, intra, grpo"):
        estimate("gae", [[1.0]])


# --- laws -----------------------------------------------------------------------------------------

reward = st.floats(-10, 10).map(lambda x: round(x, 3))
leaves = st.lists(reward, min_size=1, max_size=6)
forests = st.lists(leaves, min_size=1, max_size=4)
holed_forests = st.lists(st.lists(st.none() | reward, max_size=6), max_size=4)
any_name = st.sampled_from(sorted(ESTIMATORS))


@given(any_name, holed_forests)
def test_the_shape_and_the_holes_stay(name, rewards):
    advantages = estimate(name, rewards)
    assert [[a is None for a in tree] for tree in advantages] == [
        [r is None for r in tree] for tree in rewards
    ]
    assert all(math.isfinite(a) for a in flat(advantages) if a is not None)


@given(any_name, holed_forests)
def test_advantages_of_a_prompt_add_up_to_zero(name, rewards):
    present = [a for a in flat(estimate(name, rewards)) if a is not None]
    assert math.fsum(present) == pytest.approx(0, abs=1e-9)


@given(leaves.filter(lambda v: max(v) > min(v)))
def test_z_scores_have_unit_sample_variance(values):
    scores = z_scores(values)
    variance = math.fsum(s * s for s in scores) / (len(scores) - 1)
    assert variance == pytest.approx(1, rel=1e-2)
    assert variance < 1


@given(any_name, forests, st.integers(-5, 5))
def test_a_shift_of_all_rewards_changes_nothing(name, rewards, shift):
    shifted = [[r + shift for r in tree] for tree in rewards]
    assert flat(estimate(name, shifted)) == pytest.approx(flat(estimate(name, rewards)), abs=1e-6)


@given(any_name, forests, st.randoms(use_true_random=False))
def test_the_order_of_trees_and_leaves_does_not_matter(name, rewards, rng):
    order = [rng.sample(range(len(tree)), len(tree)) for tree in rewards]
    trees = rng.sample(range(len(rewards)), len(rewards))
    shuffled = estimate(name, [[rewards[t][i] for i in order[t]] for t in trees])
    straight = estimate(name, rewards)
    assert shuffled == [[straight[t][i] for i in order[t]] for t in trees]


@given(any_name, st.floats(-10, 10), st.lists(st.integers(1, 5), min_size=1, max_size=4))
def test_equal_rewards_give_exactly_zero(name, value, sizes):
    assert set(flat(estimate(name, [[value] * size for size in sizes]))) == {0.0}


@given(leaves)
def test_with_one_tree_inter_equals_intra_and_tree_is_twice_it(values):
    inter, intra = estimate("inter", [values]), estimate("intra", [values])
    assert inter == intra
    assert estimate("tree", [values]) == [[2 * a for a in intra[0]]]


@given(leaves)
def test_with_one_leaf_a_tree_the_tree_estimator_is_grpo(values):
    chains = [[value] for value in values]
    assert estimate("tree", chains) == estimate("grpo", chains)


# --- rows of a batch ------------------------------------------------------------------------------


def test_rows_are_grouped_by_uid_wherever_they_stand():
    advantages = advantages_by_row("grpo", [1, 0, 0, 1, 0, 0], list("abbaab"), list("abbaab"))
    assert advantages == pytest.approx([0.5773, 0, 0, 0.5773, -1.1547, 0], abs=1e-4)


def test_interleaved_prompts_are_not_grouped_by_position():
    advantages = advantages_by_row("grpo", [1, 0, 0, 0], list("pqpq"), list("1111"))
    assert advantages == pytest.approx([0.7071, 0, -0.7071, 0], abs=1e-4)


@pytest.mark.parametrize(("left", "right"), [("007", "7"), ("1_0", "10"), ("q_12", "q_13")])
def test_uids_are_opaque_text(left, right):
    assert advantages_by_row("grpo", [1, 0], [left, right], ["t", "t"]) == [0, 0]


def test_equal_tree_ids_under_two_prompts_are_two_trees():
    advantages = advantages_by_row("intra", [1, 0, 0, 1], list("ppqq"), list("0000"))
    assert advantages == pytest.approx([0.7071, -0.7071, -0.7071, 0.7071], abs=1e-4)


@given(forests, st.randoms(use_true_random=False))
def test_the_result_follows_its_row(rewards, rng):
    rows = [
        (p, t, reward, advantage)
        for p, prompt in enumerate((rewards, rewards[::-1]))
        for t, (tree, values) in enumerate(zip(prompt, estimate("tree", prompt), strict=True))
        for reward, advantage in zip(tree, values, strict=True)
    ]
    rng.shuffle(rows)
    uids, trees = [f"p{p}" for p, *_ in rows], [str(t) for _, t, *_ in rows]
    got = advantages_by_row("tree", [r for _, _, r, _ in rows], uids, trees)
    assert got == pytest.approx([a for *_, a in rows], abs=1e-9)


def test_a_failed_row_leaves_its_group():
    assert advantages_by_row("tree", [1, 1, 1, None], ["p"] * 4, ["t"] * 4) == [0, 0, 0, None]
    assert advantages_by_row("tree", [1, 1, 1, NAN], ["p"] * 4, ["t"] * 4) == [0, 0, 0, None]


def test_columns_of_unequal_length_and_numeric_uids_are_refused():
    with pytest.raises(ValueError, match="3 rewards, 2 uids"):
        advantages_by_row("tree", [1, 0, 0], ["p", "p"], ["t", "t"])
    with pytest.raises(ValueError, match="row 1 has the uid 7 of type int"):
        advantages_by_row("tree", [1, 0], ["p", 7], ["t", "t"])


def test_a_full_training_step_is_a_matter_of_milliseconds():
    rng = random.Random(0)
    rows = [(str(p), str(t), rng.random()) for p in range(512) for t in range(2) for _ in range(3)]
    rng.shuffle(rows)
    uids, trees, rewards = zip(*rows, strict=True)
    best = math.inf
    for _ in range(5):
        started = time.perf_counter()
        advantages_by_row("tree", rewards, uids, trees)
        best = min(best, time.perf_counter() - started)
    assert best < 0.05, f"3,072 rows took {best * 1e3:.0f} ms"
