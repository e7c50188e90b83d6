"""A forest in the terminal: who searched for what, which leaf earned what, what was shared."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text
from rich.tree import Tree as RichTree

from search_r1.credit import estimate
from search_r1.ledger import Cost
from search_r1.tree import ROOT, Forest, Tree
from search_r1.types import ActionKind, Step

MAX_TITLES = 3
ACTION_STYLES: dict[ActionKind, str] = {
    ActionKind.SEARCH: "cyan",
    ActionKind.ANSWER: "bold",
    ActionKind.INVALID: "yellow",
}


def draw(forest: Forest, console: Console | None = None, estimator: str = "tree") -> None:
    """Print a forest, to standard output by default."""
    (console or Console()).print(render_forest(forest, estimator))


def render_forest(forest: Forest, estimator: str = "tree") -> RichTree:
    """A forest as a rich tree: one line a node, cut to the width of the console.

    Kept leaves show their reward and their advantage under ``estimator``; the advantage is "-"
    where the leaf has no reward. A node that several leaves pass through is marked as shared.
    Raises ValueError for an unknown estimator.
    """
    golden = ", ".join(forest.query.golden_answers) or "none"
    drawing = RichTree(_line((forest.query.question, "bold"), (f"  gold: {golden}", "green")))
    cost, uid = forest.cost, forest.query.uid
    drawing.add(_line((f"uid {uid}, {_spent(cost)}, {_cached(cost)}", "dim")))
    advantages = estimate(estimator, forest.rewards())
    for number, (tree, values) in enumerate(zip(forest.trees, advantages, strict=True), start=1):
        kept, grown = len(tree.kept_leaves), len(tree.leaves)
        branch = drawing.add(
            _line((f"tree {number}", "bold"), (f"  {kept} of {grown} leaves kept", "dim"))
        )
        by_leaf = dict(zip(tree.kept_leaves, values, strict=True))
        _add_children(branch, tree, ROOT, by_leaf, _count_leaves(tree))
    return drawing


def _add_children(
    drawing: RichTree,
    tree: Tree,
    parent: int,
    advantages: dict[int, float | None],
    num_leaves: Sequence[int],
) -> None:
    # A branch is as deep as its turns, so recursion cannot run away.
    for index in tree.nodes[parent].children:
        node = tree.nodes[index]
        step = node.step
        assert step is not None, f"node {index} has no step, but only the root may lack one"
        parts = [(f"{node.depth}. ", "dim"), *_describe_step(step)]
        if num_leaves[index] > 1:
            parts.append((f"  shared by {num_leaves[index]} leaves", "magenta"))
        if node.is_leaf:
            # in front of the text, where a narrow console cannot cut it off
            reward = None if node.reward is None else node.reward.value
            parts[1:1] = _describe_score(reward, node.kept, advantages.get(index))
        _add_children(drawing.add(_line(*parts)), tree, index, advantages, num_leaves)


def _describe_step(step: Step) -> list[tuple[str, str]]:
    kind = step.action.kind
    parts = [(f"{kind.value} ", ACTION_STYLES[kind]), (step.action.text, "")]
    if step.failure is not None and not step.token_ids:
        parts.clear()  # nothing was sampled, so there is no action to show
    titles = [document.title for document in step.documents[:MAX_TITLES]]
    if titles:
        parts.append((f"  -> {'; '.join(titles)}", "blue"))
    parts.append((f"  {len(step.token_ids)}+{len(step.observation_ids)} tokens", "dim"))
    if step.failure is not None:
        parts.append((f"  {step.failure.boundary} failed: {step.failure.message}", "red"))
    elif step.stop is not None and step.stop.is_truncated:
        parts.append((f"  stopped: {step.stop.value}", "yellow"))
    return parts


def _describe_score(
    reward: float | None, kept: bool, advantage: float | None
) -> list[tuple[str, str]]:
    if reward is None:
        score = ("R - ", "red")
    else:
        style = "green" if reward >= 0.8 else "yellow" if reward > 0.2 else "red"
        score = (f"R {reward:.2f} ", style)
    if not kept:
        return [score, ("not kept ", "dim")]
    return [score, ("A - " if advantage is None else f"A {advantage:+.2f} ", "bold")]


def _count_leaves(tree: Tree) -> list[int]:
    """Leaves below each node, itself included; parents come before children in the arena."""
    counts = [int(node.is_leaf) for node in tree.nodes]
    for index in range(len(tree.nodes) - 1, ROOT, -1):
        counts[tree.nodes[index].parent] += counts[index]
    return counts


def _spent(cost: Cost) -> str:
    return f"{cost.generated_tokens} tokens sampled, {cost.tool_calls} tool calls"


def _cached(cost: Cost) -> str:
    return f"{cost.cached_fraction:.0%} of {cost.prompt_tokens} context tokens cached"


def _line(*parts: tuple[str, str]) -> Text:
    """One styled line; model text may hold line ends and escape codes, the terminal gets none."""
    line = Text(no_wrap=True, overflow="ellipsis")
    for text, style in parts:
        line.append("".join(c if c.isprintable() else " " for c in text), style)
    return line
