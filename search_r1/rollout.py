"""Tree rollouts: M chains per prompt, then L rounds of N branches a tree (paper, tree search).

Reads top-down: :func:`grow_forest`, :func:`grow_tree`, :func:`extend_to_leaf`, :func:`take_turn`.
There is no barrier between trees, prompts or branches; every branch is a coroutine and the engine
does the batching. Branches of a round are attached in the order they were drawn, so the same seed
and a deterministic policy give the same forest whatever finishes first.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from random import Random

from search_r1.config import TreeConfig
from search_r1.expansion import EXPANDERS
from search_r1.ledger import Cost
from search_r1.parsing import STOP_STRINGS, find_action
from search_r1.prompts import INVALID_TURN, observe
from search_r1.protocols import Policy, PolicyError, Retriever, RetrieverError, Scorer
from search_r1.tree import ROOT, Forest, Tree
from search_r1.types import Action, ActionKind, Failure, Query, Step, StopReason


@dataclass(frozen=True, slots=True)
class Agent:
    """Everything a rollout needs besides the question."""

    policy: Policy
    retriever: Retriever
    config: TreeConfig
    scorer: Scorer


async def grow_forest(query: Query, agent: Agent, *, step: int = 0) -> Forest:
    """Grow the M trees of one prompt and score their leaves.

    ``step`` is the training step; it enters the seed of every random choice.
    """
    seeds = [f"{agent.config.seed}/{step}/{query.uid}/{m}" for m in range(agent.config.M)]
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(grow_tree(query, agent, Random(seed))) for seed in seeds]
    forest = Forest(query, [task.result() for task in tasks])
    score_leaves(forest, agent.scorer)
    return forest


async def grow_tree(query: Query, agent: Agent, rng: Random) -> Tree:
    """One tree: a first chain, then L rounds in which N nodes each grow a branch to its leaf."""
    config = agent.config
    tree = Tree(query.prompt_ids)
    tree.attach(ROOT, await extend_to_leaf(tree, ROOT, query, agent))
    for _ in range(config.L):
        parents = EXPANDERS[config.expansion](tree, config.N, rng)
        async with asyncio.TaskGroup() as group:
            branches = [
                group.create_task(extend_to_leaf(tree, parent, query, agent)) for parent in parents
            ]
        for parent, branch in zip(parents, branches, strict=True):
            tree.attach(parent, branch.result())
    keep_leaves(tree, config.leaves_kept, rng)
    return tree


def keep_leaves(tree: Tree, k: int, rng: Random) -> None:
    """Keep ``k`` leaves, drawn uniformly; failed ones are kept only where others run out."""
    leaves = tree.leaves
    healthy = [i for i in leaves if (s := tree.nodes[i].step) is not None and s.failure is None]
    failed = [i for i in leaves if i not in healthy]
    kept = rng.sample(healthy, min(k, len(healthy)))
    kept += failed[: k - len(kept)]
    for leaf in leaves:
        tree.nodes[leaf].kept = leaf in kept


def score_leaves(forest: Forest, scorer: Scorer) -> None:
    """Give every healthy leaf its reward; a failed leaf keeps None."""
    for tree in forest.trees:
        for leaf in tree.leaves:
            trajectory = tree.trajectory(leaf)
            if trajectory.stop is not StopReason.ERROR:
                tree.nodes[leaf].reward = scorer(trajectory, forest.query)


async def extend_to_leaf(tree: Tree, start: int, query: Query, agent: Agent) -> list[Step]:
    """Continue from a node, turn by turn, until the branch ends in a step with a stop reason."""
    context = tree.context(start)
    depth = tree.nodes[start].depth
    steps: list[Step] = []
    while not steps or steps[-1].stop is None:
        steps.append(await take_turn(context, len(query.prompt_ids), depth, query.uid, agent))
        context += steps[-1].token_ids
        context += steps[-1].observation_ids
        depth += 1
    return steps


async def take_turn(
    context: Sequence[int], prompt_length: int, depth: int, uid: str, agent: Agent
) -> Step:
    """One turn: sample, parse, act. ``depth`` turns were used up; ``max_turns`` forces the end.

    A search in the forced turn is not run, so the search count equals real retriever calls (FC-21).
    """
    config = agent.config
    room = config.response_tokens - (len(context) - prompt_length)
    sampled = await sample_turn(context, min(config.max_turn_tokens, room), uid, agent)
    if sampled.failure is not None or sampled.action.kind is ActionKind.ANSWER:
        return sampled
    if depth >= config.max_turns:
        return replace(sampled, stop=StopReason.MAX_TURNS)
    room -= len(sampled.token_ids)
    if sampled.action.kind is ActionKind.SEARCH:
        return await search_turn(sampled, room, agent)
    return refuse_turn(sampled, room, agent)


async def sample_turn(context: Sequence[int], max_tokens: int, uid: str, agent: Agent) -> Step:
    """Sample one turn, cut behind its action: ids, log-probs and text end together (FC-05)."""
    policy, started = agent.policy, time.perf_counter()
    try:
        out = await policy.generate(
            context, request_id=uid, max_tokens=max_tokens, stop=STOP_STRINGS
        )
    except PolicyError as error:
        cost = Cost(policy_s=time.perf_counter() - started)
        return failed_step("policy", error, cost)
    cost = Cost(
        generated_tokens=len(out.token_ids),
        prompt_tokens=len(context),
        cached_tokens=out.num_cached_tokens,
        policy_s=time.perf_counter() - started,
    )
    text = policy.decode(out.token_ids)
    action, end = find_action(text)
    kept = len(out.token_ids)
    if action.kind is not ActionKind.INVALID:
        kept = tokens_covering(out.token_ids, end, text, policy)
        text = text[:end]
    return Step(
        token_ids=out.token_ids[:kept],
        logprobs=out.logprobs[:kept],
        text=text,
        action=action,
        cost=cost,
        stop=StopReason.ANSWERED if action.kind is ActionKind.ANSWER else None,
        weight_version=out.weight_version,
    )


def tokens_covering(token_ids: Sequence[int], end: int, text: str, policy: Policy) -> int:
    """The fewest leading tokens whose text reaches position ``end`` of ``text``.

    The last token may carry characters beyond ``end``; it is kept as sampled, never re-encoded.
    """
    low, high = 0, len(token_ids)
    while low < high:
        middle = (low + high) // 2
        if policy.decode(token_ids[:middle]).startswith(text[:end]):
            high = middle
        else:
            low = middle + 1
    return low


async def search_turn(step: Step, room: int, agent: Agent) -> Step:
    """Run the search of a turn and attach what it found, cut to fit the context budget."""
    config, started = agent.config, time.perf_counter()
    reopen = reopening(step, agent.policy)
    # One token must stay free for the next turn: a branch that cannot go on ends here.
    limit = min(config.max_observation_tokens, room - len(reopen) - 1)
    wrap = partial(
        observe,
        encode=agent.policy.encode,
        decode=agent.policy.decode,
        limit=limit,
        keep=config.observation_keep,
    )
    if wrap([]) is None:
        return replace(step, stop=StopReason.MAX_TOKENS)
    query = step.action.text[: config.max_query_chars]
    try:
        documents = await agent.retriever.search(query, config.topk)
    except RetrieverError as error:
        cost = step.cost + Cost(tool_calls=1, tool_s=time.perf_counter() - started)
        failure = Failure("retriever", f"{type(error).__name__}: {error}")
        return replace(step, stop=StopReason.ERROR, failure=failure, cost=cost)
    cost = step.cost + Cost(tool_calls=1, tool_s=time.perf_counter() - started)
    observation = wrap(documents)
    assert observation is not None, "the empty observation fitted, so must the cut one"
    ids, text = observation
    return replace(
        step,
        observation_ids=(*reopen, *ids),
        observation=text,
        documents=tuple(documents),
        cost=cost,
    )


def refuse_turn(step: Step, room: int, agent: Agent) -> Step:
    """Answer an invalid turn with a corrective sentence; it uses up a turn."""
    ids = [*reopening(step, agent.policy), *agent.policy.encode(INVALID_TURN)]
    if len(ids) >= room:
        return replace(step, stop=StopReason.MAX_TOKENS)
    return replace(step, observation_ids=tuple(ids), observation=INVALID_TURN)


def reopening(step: Step, policy: Policy) -> Sequence[int]:
    """Template ids that reopen the assistant turn where the model closed it itself (FC-10)."""
    closed = bool(step.token_ids) and step.token_ids[-1] in policy.end_ids
    return policy.reopen_ids if closed else ()


def failed_step(boundary: str, error: Exception, cost: Cost) -> Step:
    """An empty step that records a failure and ends its branch."""
    return Step(
        token_ids=(),
        logprobs=(),
        text="",
        action=Action(ActionKind.INVALID, f"{boundary} failed"),
        cost=cost,
        stop=StopReason.ERROR,
        failure=Failure(boundary, f"{type(error).__name__}: {error}"),
    )
