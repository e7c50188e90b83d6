"""Uniform without replacement, leaving the root out where another node exists.

A branch from the root shares nothing but the prompt, so it is a further chain, not a branch.
Degenerate cases: with fewer than ``n`` inner nodes each is taken once and the rest is drawn with
replacement, so that the number of leaves stays what was asked for; a tree without inner nodes gives
the root.
"""

from __future__ import annotations

from random import Random

from search_r1.tree import ROOT, Tree


def select(tree: Tree, n: int, rng: Random) -> list[int]:
    """Pick ``n`` node indices, distinct while there are enough."""
    inner = [index for index in tree.expandable if index != ROOT] or [ROOT]
    if n <= len(inner):
        return rng.sample(inner, n)
    return inner + rng.choices(inner, k=n - len(inner))
