"""Tensor plumbing around :mod:`search_r1.credit`: rows in, one advantage per row out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from search_r1.credit import ESTIMATORS
from search_r1.credit.grouped import advantages_by_row


def row_advantages(
    name: str, rewards: torch.Tensor, uids: Sequence[str], tree_uids: Sequence[str]
) -> torch.Tensor:
    """Advantages of rows in any order.

    Args:
        name: estimator in :data:`search_r1.credit.ESTIMATORS`.
        rewards: (B,) score of each row; NaN marks a row without one.
        uids: B prompt ids; padding rows (``pad...``) belong to no group.
        tree_uids: B tree ids.

    Returns:
        (B,) float32; 0 for padding rows and rows without a reward.
    """
    real = [i for i, uid in enumerate(uids) if not uid.startswith("pad")]
    values = advantages_by_row(
        name,
        [float(rewards[i]) for i in real],
        [uids[i] for i in real],
        [tree_uids[i] for i in real],
    )
    out = torch.zeros(len(uids), dtype=torch.float32)
    for i, value in zip(real, values, strict=True):
        out[i] = 0.0 if value is None else value
    return out


def register_estimators(register: Any) -> None:
    """Tell verl the names, so that its configuration checks know them.

    ``register`` is ``verl.trainer.ppo.core_algos.register_adv_est``. ``grpo`` is upstream's own
    name and stays upstream's there; the tree trainer computes all of them through this module.
    """
    for name in ESTIMATORS:
        if name != "grpo":
            register(name)(_as_verl_estimator(name))


def _as_verl_estimator(name: str) -> Any:
    def estimator(
        token_level_rewards: torch.Tensor,
        response_mask: torch.Tensor,
        index: np.ndarray | None = None,
        tree_uid: np.ndarray | None = None,
        **_: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Rewards, mask (B, R), prompt ids ``index`` (B,), tree ids (B,) -> advantages (B, R)."""
        if index is None or tree_uid is None:
            raise ValueError(
                f"adv_estimator={name} needs the prompt id and the tree id of every row; use "
                "trainer.v1.trainer_mode=tree, which passes both"
            )
        advantages = row_advantages(
            name,
            token_level_rewards.sum(-1),
            [str(x) for x in index],
            [str(x) for x in tree_uid],
        )
        spread = advantages[:, None] * response_mask
        return spread, spread

    estimator.__name__ = f"{name}_advantage"
    return estimator
