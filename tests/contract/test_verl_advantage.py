"""Our prompt-level estimator is upstream's GRPO wherever both have a defined value."""

import pytest

from search_r1.credit.grouped import advantages_by_row

core_algos = pytest.importorskip(
    "verl.trainer.ppo.core_algos", reason="upstream verl is not installed"
)
np = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")


def upstream_grpo(rewards, uids):
    token_rewards = torch.zeros(len(rewards), 3, dtype=torch.float64)
    token_rewards[:, -1] = torch.tensor(rewards, dtype=torch.float64)
    mask = torch.ones(len(rewards), 3)
    mask[0, 1] = 0
    advantages, _ = core_algos.compute_grpo_outcome_advantage(
        token_rewards, mask, np.array(uids, dtype=object)
    )
    assert advantages[0, 1] == 0
    return advantages[:, 0].tolist()


@pytest.mark.parametrize(
    ("rewards", "uids"),
    [
        ([1, 0.2, 0.2, 0.2, 0.2, 0.2], list("pppppp")),
        ([1, 0, 0, 1, 1, 0.1], list("pqpqpq")),
        ([1, 0, 0, 1, 0, 0], list("abbaab")),
        ([1.0, 0.8, 0.2, 0.1], ["007", "7", "007", "7"]),
    ],
)
def test_grpo_on_healthy_groups_is_upstreams_grpo(rewards, uids):
    ours = advantages_by_row("grpo", rewards, uids, ["t"] * len(uids))
    assert ours == pytest.approx(upstream_grpo(rewards, uids), abs=1e-6)


def test_upstream_still_returns_the_raw_reward_for_a_group_of_one_and_ours_zero():
    assert upstream_grpo([1.0], ["p"]) == pytest.approx([1.0], abs=1e-5)
    assert advantages_by_row("grpo", [1.0], ["p"], ["t"]) == [0.0]
