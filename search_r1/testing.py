"""Builders of small trajectories and forests, for tests and documentation.

Token ids are the bytes of the text and every log-prob is -0.5, so ids and lengths can be checked by
eye.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from search_r1.ledger import Cost
from search_r1.parsing import find_action
from search_r1.tree import ROOT, Forest, Tree
from search_r1.types import (
    ActionKind,
    Document,
    Failure,
    Query,
    Reward,
    Rewards,
    Step,
    StopReason,
    Trajectory,
)

SEARCH = "<think>t</think><search>capital of Norway</search>"
ANSWER = "<think>t</think><answer>Oslo</answer>"


def query(
    golden_answers: Sequence[str] = ("Oslo",),
    *,
    uid: str = "q0",
    question: str = "What is the capital of Norway?",
    data_source: str = "nq",
) -> Query:
    """A query whose prompt ids are the bytes of its question."""
    ids = tuple(question.encode())
    return Query(uid, question, ids, tuple(golden_answers), data_source)


def step(text: str, *, observation: str = "", stop: StopReason | None = None) -> Step:
    """A step that parses its own text; a search that goes on has one document."""
    action = find_action(text)[0]
    ids, observation_ids = tuple(text.encode()), tuple(observation.encode())
    searched = action.kind is ActionKind.SEARCH and stop is None
    return Step(
        token_ids=ids,
        logprobs=(-0.5,) * len(ids),
        text=text,
        action=action,
        observation_ids=observation_ids,
        observation=observation,
        documents=(Document("d1", "Norway", "Oslo is the capital."),) if searched else (),
        cost=Cost(generated_tokens=len(ids), tool_calls=int(searched)),
        stop=stop,
    )


def trajectory(
    turns: Sequence[str], *, observation: str = "<information></information>"
) -> Trajectory:
    """A trajectory from the text of its turns; every turn but the last gets ``observation``.

    It ends ANSWERED where the last turn holds an answer, else MAX_TURNS.

    >>> trajectory([SEARCH, ANSWER]).answer
    'Oslo'
    """
    assert turns, "a trajectory needs at least one turn"
    tree = Tree(query().prompt_ids)
    answered = find_action(turns[-1])[0].kind is ActionKind.ANSWER
    last = step(turns[-1], stop=StopReason.ANSWERED if answered else StopReason.MAX_TURNS)
    steps = [step(turn, observation=observation) for turn in turns[:-1]]
    return tree.trajectory(tree.attach(ROOT, [*steps, last])[-1])


def forest(rewards: Rewards, *, uid: str = "q0") -> Forest:
    """A forest with the given leaf rewards; the leaves of a tree share their first search.

    A reward of None makes a leaf that failed at the retriever.

    >>> forest(rewards=[[1, 0, None], [1, 1, 1]]).rewards()
    [[1, 0, None], [1, 1, 1]]
    """
    question = query(uid=uid)
    return Forest(question, [_tree(question, tree) for tree in rewards])


def _tree(question: Query, rewards: Sequence[float | None]) -> Tree:
    tree = Tree(question.prompt_ids)
    shared = tree.attach(ROOT, [step(SEARCH, observation="<information></information>")])[0]
    for reward in rewards:
        if reward is None:
            failure = Failure("retriever", "connection refused")
            failed = replace(step("", stop=StopReason.ERROR), failure=failure)
            tree.attach(shared, [failed])
            continue
        leaf = tree.attach(shared, [step(ANSWER, stop=StopReason.ANSWERED)])[0]
        tree.nodes[leaf].reward = Reward(reward, {"em": float(reward == 1)})
    return tree
