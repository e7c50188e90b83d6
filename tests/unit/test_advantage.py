"""Rows in any order get their own leaf's advantage; padding gets none and touches nothing."""

import pytest

torch = pytest.importorskip("torch")

from verl_tree_grpo.advantage import register_estimators, row_advantages


# FC-01
def test_leaves_keep_their_own_rewards_and_advantages():
    rewards = torch.tensor([1.0, 0, 0, 1, 1, 1])
    uids, trees = ["p"] * 6, ["p/0"] * 3 + ["p/1"] * 3
    right = {
        "tree": [1.8002, -1.8683, -1.8683, 0.6455, 0.6455, 0.6455],
        "inter": [0.6455, -1.2910, -1.2910, 0.6455, 0.6455, 0.6455],
        "intra": [1.1547, -0.5774, -0.5774, 0, 0, 0],
    }
    for name, values in right.items():
        got = row_advantages(name, rewards, uids, trees)
        assert got.tolist() == pytest.approx(values, abs=1e-4), name


def test_an_advantage_follows_its_row_through_any_reordering():
    rewards = torch.tensor([1.0, 0, 0, 1, 1, 1, 0.2, 0.0])
    uids = ["p"] * 6 + ["q"] * 2
    trees = ["p/0"] * 3 + ["p/1"] * 3 + ["q/0"] * 2
    straight = row_advantages("tree", rewards, uids, trees)
    order = [7, 2, 5, 0, 3, 6, 1, 4]
    shuffled = [uids[i] for i in order], [trees[i] for i in order]
    mixed = row_advantages("tree", rewards[order], *shuffled)
    assert torch.equal(mixed, straight[order])


def test_padding_rows_get_zero_and_change_nobody_elses_advantage():
    rewards = torch.tensor([1.0, 0, 0])
    alone = row_advantages("tree", rewards, ["p"] * 3, ["p/0"] * 3)
    padded = row_advantages(
        "tree", torch.tensor([1.0, 0, 0, 0, 0]), ["p"] * 3 + ["pad1"] * 2, ["p/0"] * 5
    )
    assert torch.equal(padded[:3], alone) and not padded[3:].any()


# FC-14, FC-37
def test_a_row_without_a_reward_gets_zero_and_leaves_its_group():
    rewards = torch.tensor([1.0, 1.0, 1.0, float("nan")])
    assert row_advantages("grpo", rewards, ["p"] * 4, ["p/0"] * 4).tolist() == [0, 0, 0, 0]


def test_registered_estimators_refuse_rows_without_tree_ids():
    registered = {}
    register_estimators(lambda name: lambda f: registered.setdefault(name, f))
    assert "grpo" not in registered and "tree" in registered
    with pytest.raises(ValueError, match="trainer_mode=tree"):
        registered["tree"](torch.zeros(1, 2), torch.ones(1, 2), index=["p"])
