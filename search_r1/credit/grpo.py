"""Prompt-level credit: every leaf against all leaves of its prompt.

``A_i = z(R)_i`` over the whole forest; GRPO (arXiv 2402.03300), and the inter-tree term of
Tree-GRPO (arXiv 2509.21240, section on advantages). Tree borders do not matter. Degenerate cases:
see :func:`search_r1.credit.groups.z_scores`.
"""

from __future__ import annotations

from search_r1.credit.groups import z_scores
from search_r1.types import Rewards


def grpo_advantages(rewards: Rewards) -> list[list[float | None]]:
    """Advantages in the shape of ``rewards`` (trees of leaves); None where the reward is missing.

    >>> [[round(a, 4) for a in tree] for tree in grpo_advantages([[1, 0.2, 0.2], [0.2, 0.2, 0.2]])]
    [[2.0412, -0.4082, -0.4082], [-0.4082, -0.4082, -0.4082]]
    """
    scores = iter(z_scores([reward for tree in rewards for reward in tree]))
    return [[next(scores) for _ in tree] for tree in rewards]
