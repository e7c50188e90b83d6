"""Tree-level credit: every leaf against the leaves of its own tree.

``A_i = z(R over the tree)_i``: the intra-tree term of Tree-GRPO (arXiv 2509.21240, section on
advantages), which compares branches that share a prefix and so acts like step-level preference
learning. Degenerate cases: a tree with one valid leaf, or with equal rewards, gives exactly 0.
Alone it collapses at small budgets (the paper's ablation).
"""

from __future__ import annotations

from search_r1.credit.groups import z_scores
from search_r1.types import Rewards


def intra_advantages(rewards: Rewards) -> list[list[float | None]]:
    """Advantages in the shape of ``rewards`` (trees of leaves); None where the reward is missing.

    >>> [[round(a, 4) for a in tree] for tree in intra_advantages([[1, 0, 0], [1, 1, 1]])]
    [[1.1547, -0.5773, -0.5773], [0.0, 0.0, 0.0]]
    """
    return [z_scores(tree) for tree in rewards]
