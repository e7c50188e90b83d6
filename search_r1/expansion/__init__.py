"""Expansion policies: which nodes a tree grows its next branches from.

One file per policy, each a function ``select(tree, n, rng) -> node indices``. To add one: write the
file, add a line below, add a test.
"""

from __future__ import annotations

from search_r1.expansion import random, random_distinct
from search_r1.protocols import Expander

EXPANDERS: dict[str, Expander] = {
    "random": random.select,
    "random_distinct": random_distinct.select,
}
