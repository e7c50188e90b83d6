"""The reference's choice: uniform with replacement over the root and all nodes but leaves.

Source: arXiv 2509.21240, section on tree search; public code of the paper. On short questions most
picks are the root, so a tree costs more than the paper's formula says.
"""

from __future__ import annotations

from random import Random

from search_r1.tree import Tree


def select(tree: Tree, n: int, rng: Random) -> list[int]:
    """Draw ``n`` node indices, repeats allowed; a tree without inner nodes gives the root."""
    return rng.choices(tree.expandable, k=n)
