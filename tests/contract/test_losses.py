"""Masks decide what trains: values of the field cases on upstream's own aggregation, guarded."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("verl", reason="upstream verl is not installed")

from verl_tree_grpo import masking
from verl_tree_grpo.upstream import core_algos

agg_loss = masking.guard(core_algos.agg_loss)


def tensor(*rows):
    return torch.tensor(rows, dtype=torch.float32)


# FC-25
@pytest.mark.parametrize(
    ("mode", "right"),
    [("token-mean", 2.0), ("seq-mean-token-mean", 2.0), ("seq-mean-token-sum", 4.0)],
)
def test_a_nan_under_the_mask_never_reaches_the_loss(mode, right):
    loss = agg_loss(tensor([1, float("nan"), 3]), tensor([1, 0, 1]), mode)
    assert loss.item() == pytest.approx(right)


@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum"])
def test_a_fully_masked_row_adds_nothing_and_is_not_counted(mode):
    alone = agg_loss(tensor([1, 2, 3]), tensor([1, 0, 1]), mode)
    padded = agg_loss(tensor([1, 2, 3], [9, 9, 9]), tensor([1, 0, 1], [0, 0, 0]), mode)
    assert padded.item() == pytest.approx(alone.item())


@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum"])
def test_a_batch_without_trainable_tokens_has_zero_loss_and_zero_gradient(mode):
    values = tensor([1, 2]).requires_grad_()
    loss = agg_loss(values, tensor([0, 0]), mode)
    loss.backward()
    assert loss.item() == 0.0 and not values.grad.any()


# FC-43
def test_kl_is_taken_over_model_tokens_only():
    kl, mask = tensor([0, 0, 9, 9, 0]), tensor([1, 1, 0, 0, 1])
    assert agg_loss(kl, mask, "token-mean").item() == 0.0
    assert agg_loss(kl, torch.ones_like(mask), "token-mean").item() == pytest.approx(3.6)
    assert agg_loss(kl, 1 - mask, "token-mean").item() == pytest.approx(9.0)


# FC-04: the rule is the reference's, every leaf is a row, so a shared prefix counts once a leaf
def test_a_shared_prefix_is_trained_once_for_each_leaf_below_it():
    action, observation, x, y = [1] * 4, [0] * 3, [1] * 2, [1] * 6
    width = 13
    rows = [action + observation + x, action + observation + y]
    mask = tensor(*[row + [0] * (width - len(row)) for row in rows])
    advantages = torch.tensor([[1.0], [-1.0]])
    loss = agg_loss(-advantages * mask, mask, "token-mean")
    assert mask.sum() == 16
    assert loss.item() == pytest.approx(0.25)


def test_installing_the_guard_twice_wraps_once():
    masking.install()
    first = core_algos.agg_loss
    masking.install()
    assert core_algos.agg_loss is first and first.guards_mask
