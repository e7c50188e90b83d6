"""Loss aggregation that never lets a masked position through (FC-25).

Upstream multiplies by the mask, which keeps a NaN; here masked positions are replaced by zero
first. A batch without any trainable token gives a loss of zero.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from verl_tree_grpo.upstream import core_algos, losses, trainer_base


def guard(aggregate: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Wrap verl's ``agg_loss``: same arguments and result, masked positions ignored for certain."""

    def agg_loss(
        loss_mat: torch.Tensor, loss_mask: torch.Tensor, *args: Any, **kwargs: Any
    ) -> torch.Tensor:
        loss_mat = torch.where(loss_mask.bool(), loss_mat, torch.zeros_like(loss_mat))
        if not bool(loss_mask.any()):
            return loss_mat.sum()
        return aggregate(loss_mat, loss_mask, *args, **kwargs)

    agg_loss.guards_mask = True  # type: ignore[attr-defined]
    return agg_loss


def install() -> None:
    """Put the guard where verl's losses and metrics look ``agg_loss`` up, in this process."""
    if getattr(core_algos.agg_loss, "guards_mask", False):
        return
    guarded = guard(core_algos.agg_loss)
    for module in (core_algos, losses, trainer_base):
        module.agg_loss = guarded
