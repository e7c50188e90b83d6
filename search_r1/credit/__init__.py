"""Advantage estimators by name: leaf rewards of one prompt in, one advantage a leaf out.

A new estimator is one file with a pure function and one line here.
"""

from __future__ import annotations

from collections.abc import Callable

from search_r1.credit.grpo import grpo_advantages
from search_r1.credit.intra import intra_advantages
from search_r1.credit.tree import tree_advantages
from search_r1.types import Rewards

Estimator = Callable[[Rewards], list[list[float | None]]]

ESTIMATORS: dict[str, Estimator] = {
    "tree": tree_advantages,
    "inter": grpo_advantages,
    "intra": intra_advantages,
    "grpo": grpo_advantages,
}
"""``inter`` is the paper's name for what ``grpo`` computes."""


def estimate(name: str, rewards: Rewards) -> list[list[float | None]]:
    """Advantages of one prompt's leaves, in the shape of ``rewards``.

    Raises ValueError for an unknown estimator.

    >>> estimate("tree", [[1.0], [1.0]])
    [[0.0], [0.0]]
    """
    if name not in ESTIMATORS:
        raise ValueError(f"unknown estimator {name!r}; known: {', '.join(ESTIMATORS)}")
    return ESTIMATORS[name](rewards)
