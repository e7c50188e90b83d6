"""The tree of one prompt: an arena of nodes with integer parents.

A node holds only the tokens it adds, and concatenating along a path gives exactly what the model
saw. Node 0 is the root (the prompt). A leaf is a node whose step has a stop reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from search_r1.ledger import Cost
from search_r1.types import Owner, Query, Reward, Step, Trajectory

ROOT = 0


@dataclass(slots=True)
class Node:
    """One agent step in the arena.

    ``depth`` counts steps from the root, which has 0 and no step.

    ``kept`` is False for a leaf that was grown but not among the K returned by its tree.
    """

    parent: int
    depth: int
    step: Step | None
    children: list[int] = field(default_factory=list[int])
    reward: Reward | None = None
    kept: bool = True

    @property
    def is_leaf(self) -> bool:
        """Whether the branch ended here."""
        return self.step is not None and self.step.stop is not None


@dataclass(slots=True)
class Tree:
    """One tree: the arena, in order of attachment, so every parent comes before its children."""

    prompt_ids: tuple[int, ...]
    nodes: list[Node] = field(default_factory=lambda: [Node(parent=-1, depth=0, step=None)])

    def attach(self, parent: int, steps: Sequence[Step]) -> list[int]:
        """Hang a branch of steps below ``parent`` and return the new node indices."""
        assert 0 <= parent < len(self.nodes), f"no node {parent} in a tree of {len(self.nodes)}"
        added: list[int] = []
        for step in steps:
            assert not self.nodes[parent].is_leaf, f"node {parent} is a leaf, nothing can follow it"
            assert len(step.token_ids) == len(step.logprobs), (
                f"step has {len(step.token_ids)} tokens and {len(step.logprobs)} log-probs"
            )
            index = len(self.nodes)
            self.nodes.append(Node(parent=parent, depth=self.nodes[parent].depth + 1, step=step))
            self.nodes[parent].children.append(index)
            added.append(index)
            parent = index
        return added

    def path(self, index: int) -> list[int]:
        """Node indices from the root to ``index``, both included."""
        walk: list[int] = []
        while index >= 0:
            walk.append(index)
            index = self.nodes[index].parent
        return walk[::-1]

    def steps(self, index: int) -> list[Step]:
        """The steps from the root to ``index``."""
        return [step for i in self.path(index) if (step := self.nodes[i].step) is not None]

    def context(self, index: int) -> list[int]:
        """Token ids the model sees when it continues from ``index``."""
        ids = list(self.prompt_ids)
        for step in self.steps(index):
            ids += step.token_ids
            ids += step.observation_ids
        return ids

    @property
    def leaves(self) -> list[int]:
        """Indices of all leaves, in order of attachment."""
        return [i for i, node in enumerate(self.nodes) if node.is_leaf]

    @property
    def kept_leaves(self) -> list[int]:
        """Indices of the K leaves the tree returned."""
        return [i for i in self.leaves if self.nodes[i].kept]

    @property
    def expandable(self) -> list[int]:
        """Indices of nodes a branch may start from: the root and every node that is not a leaf."""
        return [i for i, node in enumerate(self.nodes) if not node.is_leaf]

    def trajectory(self, leaf: int) -> Trajectory:
        """The training row of one leaf."""
        steps = self.steps(leaf)
        stop = steps[-1].stop if steps else None
        assert stop is not None, f"node {leaf} is not a leaf"
        ids: list[int] = []
        owners: list[Owner] = []
        logprobs: list[float] = []
        for step in steps:
            ids += step.token_ids
            logprobs += step.logprobs
            owners += [Owner.MODEL] * len(step.token_ids)
            ids += step.observation_ids
            logprobs += [0.0] * len(step.observation_ids)
            owners += [Owner.OBSERVATION] * len(step.observation_ids)
        return Trajectory(
            self.prompt_ids, tuple(ids), tuple(owners), tuple(logprobs), tuple(steps), stop
        )

    @property
    def cost(self) -> Cost:
        """What growing this tree cost; a shared step is paid once."""
        return Cost.total(node.step.cost for node in self.nodes if node.step is not None)


@dataclass(slots=True)
class Forest:
    """The M trees of one prompt: the group whose leaves are compared."""

    query: Query
    trees: list[Tree]

    def leaves(self) -> Iterator[tuple[int, int]]:
        """(tree, node) of every kept leaf, tree by tree."""
        for t, tree in enumerate(self.trees):
            for leaf in tree.kept_leaves:
                yield t, leaf

    def rewards(self) -> list[list[float | None]]:
        """Reward of every kept leaf, grouped by tree; None where the leaf failed or is unscored."""
        return [
            [None if (r := tree.nodes[i].reward) is None else r.value for i in tree.kept_leaves]
            for tree in self.trees
        ]

    @property
    def cost(self) -> Cost:
        """What growing the forest cost."""
        return Cost.total(tree.cost for tree in self.trees)
