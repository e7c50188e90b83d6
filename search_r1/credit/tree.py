"""Tree-GRPO credit: the sum of prompt-level and tree-level credit.

``A_i = z(R over the prompt)_i + z(R over the tree)_i`` (arXiv 2509.21240, section on advantages).
Degenerate cases: one tree gives twice its intra-tree term; one leaf a tree gives plain GRPO; a
missing reward gives None. The two-step form (z by prompt, then z of that by tree) is another
estimator: a z-score ignores shift and scale, so it equals the intra-tree term alone.
"""

from __future__ import annotations

from search_r1.credit.grpo import grpo_advantages
from search_r1.credit.intra import intra_advantages
from search_r1.types import Rewards


def tree_advantages(rewards: Rewards) -> list[list[float | None]]:
    """Advantages in the shape of ``rewards`` (trees of leaves); None where the reward is missing.

    >>> [[round(a, 4) for a in tree] for tree in tree_advantages([[1, 0, 0], [1, 1, 1]])]
    [[1.8002, -1.8683, -1.8683], [0.6455, 0.6455, 0.6455]]
    """
    return [
        [None if a is None or b is None else a + b for a, b in zip(inter, intra, strict=True)]
        for inter, intra in zip(grpo_advantages(rewards), intra_advantages(rewards), strict=True)
    ]
