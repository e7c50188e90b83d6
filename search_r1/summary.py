"""What one forest amounted to, in plain numbers, and how a step's forests add up to metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from search_r1.ledger import Cost
from search_r1.tree import Forest, Tree
from search_r1.types import ActionKind, Failure, StopReason


@dataclass(frozen=True, slots=True)
class ForestSummary:
    """One forest, small enough to send between processes.

    ``shared_blocks`` counts the full KV blocks of each request that its tree had computed before,
    ``served_blocks`` those of them the engine took from its prefix cache. ``distinct_tokens``
    counts every token of the trees once, ``flat_tokens`` once a kept leaf. ``weight_versions`` are
    the policy versions that sampled it, as the engine reported them.
    """

    uid: str
    data_source: str
    subset: str
    rewards: tuple[float | None, ...]
    metrics: tuple[dict[str, float], ...]
    stops: tuple[StopReason, ...]
    failures: tuple[Failure, ...]
    turns: int
    invalid_turns: int
    cost: Cost
    shared_blocks: int
    served_blocks: int
    flat_tokens: int
    distinct_tokens: int
    weight_versions: tuple[int, ...] = ()


def summarise_forest(forest: Forest, *, block_size: int = 16, subset: str = "") -> ForestSummary:
    """Reduce a forest to its numbers. ``block_size`` is the engine's KV block size, tokens."""
    nodes = [node for tree in forest.trees for node in tree.nodes if node.step is not None]
    steps = [node.step for node in nodes if node.step is not None]
    leaves = [(forest.trees[t], i) for t, i in forest.leaves()]
    rewards = [tree.nodes[i].reward for tree, i in leaves]
    trajectories = [tree.trajectory(i) for tree, i in leaves]
    blocks = [_blocks(tree, block_size) for tree in forest.trees]
    return ForestSummary(
        uid=forest.query.uid,
        data_source=forest.query.data_source,
        subset=subset,
        rewards=tuple(None if r is None else r.value for r in rewards),
        metrics=tuple(dict(r.metrics) for r in rewards if r is not None),
        stops=tuple(t.stop for t in trajectories),
        failures=tuple(s.failure for s in steps if s.failure is not None),
        turns=len(steps),
        invalid_turns=sum(s.action.kind is ActionKind.INVALID for s in steps if s.failure is None),
        cost=forest.cost,
        shared_blocks=sum(shared for shared, _ in blocks),
        served_blocks=sum(served for _, served in blocks),
        flat_tokens=sum(len(t.prompt_ids) + len(t.response_ids) for t in trajectories),
        distinct_tokens=len(forest.query.prompt_ids)
        + sum(len(s.token_ids) + len(s.observation_ids) for s in steps),
        weight_versions=tuple(sorted({v for s in steps if (v := s.weight_version) is not None})),
    )


def _blocks(tree: Tree, block_size: int) -> tuple[int, int]:
    """(shared, served) full KV blocks over all requests of a tree.

    A branch's first turn shares its whole context with the tree. A later turn shares all but the
    observation it is the first to read and the sampled token before it, which was never fed back.
    The engine always computes the last token of a request itself.
    """
    shared_blocks = served_blocks = 0
    seen: set[int] = set()
    for node in tree.nodes:
        if node.step is None:
            continue
        context = len(tree.context(node.parent))
        parent = tree.nodes[node.parent].step
        fresh = node.parent not in seen and parent is not None
        new = len(parent.observation_ids) + 1 if fresh and parent is not None else 0
        first_of_tree = parent is None and node.parent not in seen
        seen.add(node.parent)
        if first_of_tree:
            continue
        shared = min(context - new, context - 1) // block_size
        shared_blocks += shared
        served_blocks += min(shared, node.step.cost.cached_tokens // block_size)
    return shared_blocks, served_blocks


def step_metrics(summaries: Sequence[ForestSummary], prefix: str = "tree") -> dict[str, float]:
    """Metrics of one training step. Keys are ``prefix/name``; shares lie in [0, 1]."""
    if not summaries:
        return {}
    cost = Cost.total(s.cost for s in summaries)
    scored = [r for s in summaries for r in s.rewards if r is not None]
    leaves = sum(len(s.rewards) for s in summaries)
    turns = sum(s.turns for s in summaries)
    shared = sum(s.shared_blocks for s in summaries)
    distinct = sum(s.distinct_tokens for s in summaries)
    stops = Counter(stop for s in summaries for stop in s.stops)
    values: dict[str, float] = {
        "prompts": len(summaries),
        "leaves": leaves,
        "error_leaves": leaves - len(scored),
        "reward_mean": sum(scored) / len(scored) if scored else 0.0,
        "mixed_prompts": _share(
            len({r for r in s.rewards if r is not None}) > 1 for s in summaries
        ),
        "invalid_turns": sum(s.invalid_turns for s in summaries) / max(turns, 1),
        "searches_per_leaf": _mean(m.get("searches") for s in summaries for m in s.metrics),
        "cached_fraction": cost.cached_fraction,
        "served_block_fraction": sum(s.served_blocks for s in summaries) / shared
        if shared
        else 0.0,
        "flat_over_distinct_tokens": sum(s.flat_tokens for s in summaries) / max(distinct, 1),
        "tokens_per_leaf": cost.generated_tokens / max(leaves, 1),
    }
    for name in ("em", "f1", "format"):
        values[name] = _mean(m.get(name) for s in summaries for m in s.metrics)
    for stop in StopReason:
        values[f"stop_{stop}"] = stops[stop] / max(leaves, 1)
    values |= cost.as_dict()
    return {f"{prefix}/{name}": float(value) for name, value in values.items()}


def validation_metrics(
    summaries: Sequence[ForestSummary], prefix: str = "val-tree"
) -> dict[str, float]:
    """Mean of every reward metric per data source, and per subset where one is given.

    Keys: ``prefix/source/em`` and ``prefix/source/subset/em``. Questions whose rollout failed are
    left out of the mean and counted in ``prefix/source/error_leaves``.
    """
    groups: dict[str, list[ForestSummary]] = {}
    for s in summaries:
        groups.setdefault(s.data_source, []).append(s)
        if s.subset:
            groups.setdefault(f"{s.data_source}/{s.subset}", []).append(s)
    out: dict[str, float] = {}
    for name, members in sorted(groups.items()):
        rows = [m for s in members for m in s.metrics]
        out[f"{prefix}/{name}/questions"] = len(members)
        out[f"{prefix}/{name}/error_leaves"] = sum(r is None for s in members for r in s.rewards)
        for key in sorted({key for row in rows for key in row}):
            out[f"{prefix}/{name}/{key}"] = _mean(row.get(key) for row in rows)
    return {key: float(value) for key, value in out.items()}


def check_failures(summaries: Sequence[ForestSummary], max_error_fraction: float) -> None:
    """Stop a run whose leaves fail too often (FC-14).

    Raises RuntimeError naming the share, the limit and the first cause.
    """
    leaves = sum(len(s.rewards) for s in summaries)
    failed = sum(r is None for s in summaries for r in s.rewards)
    if not leaves or failed / leaves <= max_error_fraction:
        return
    causes = Counter(f"{f.boundary}: {f.message}" for s in summaries for f in s.failures)
    cause = causes.most_common(1)[0][0] if causes else "no cause recorded"
    raise RuntimeError(
        f"{failed} of {leaves} leaves of this step failed ({failed / leaves:.0%}); the limit "
        f"tree.max_error_fraction is {max_error_fraction:.0%}. Most frequent cause: {cause}. "
        "Failed leaves carry no reward and train nothing; repair the cause and start the same "
        "command again, it resumes from the last checkpoint."
    )


def check_versions(summaries: Sequence[ForestSummary], expected: int) -> None:
    """Stop a run whose engine sampled from other weights than the trainer holds (FC-46)."""
    seen = {version for s in summaries for version in s.weight_versions}
    if seen - {expected}:
        raise RuntimeError(
            f"the rollout engine sampled from policy versions {sorted(seen)}, expected only "
            f"{expected}: the weight update did not reach it. Training on such samples would be "
            "off-policy without a correction; check the weight sync of the engine"
        )


def check_probability_gap(gap: float, limit: float) -> None:
    """Stop a run whose rollout and trainer disagree on the probability of sampled tokens (FC-46).

    ``gap`` is the mean absolute difference of probabilities over the step's sampled tokens.
    """
    if gap > limit:
        raise RuntimeError(
            f"rollout and trainer probabilities differ by {gap:.4f} on average, the limit "
            f"tree.max_probability_gap is {limit}: the engine holds stale or broken weights, or "
            "its precision differs too much from the trainer's"
        )


def _share(flags: Iterable[bool]) -> float:
    return _mean(float(flag) for flag in flags)


def _mean(values: Iterable[float | None]) -> float:
    present = [value for value in values if value is not None]
    return sum(present) / len(present) if present else 0.0
