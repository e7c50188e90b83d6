"""Trees grow as the paper says, and what the engine saw is what the tree holds."""

import asyncio
import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from search_r1.config import TreeConfig
from search_r1.expansion import EXPANDERS
from search_r1.policies import END_ID, ScriptedPolicy
from search_r1.protocols import PolicyError, RetrieverError
from search_r1.rollout import Agent, grow_forest
from search_r1.tree import ROOT, Tree
from search_r1.types import (
    Action,
    ActionKind,
    Document,
    Generation,
    Owner,
    Query,
    Reward,
    Step,
    StopReason,
)

PROMPT = "Q: capital?"


class Library:
    """A retriever over a dict; counts its calls and can be told to fail."""

    def __init__(self, fail=False):
        self.calls = []
        self.fail = fail

    async def search(self, query, topk):
        self.calls.append(query)
        await asyncio.sleep(0)
        if self.fail:
            raise RetrieverError("http://127.0.0.1:1 did not answer")
        return [Document(id=str(i), title=f"T{i}", text=f"about {query}") for i in range(topk)]


def agent(script, *, retriever=None, policy=None, scorer=None, **knobs):
    knobs = {"max_turn_tokens": 200, "max_observation_tokens": 120, "topk": 1} | knobs
    return Agent(
        policy=policy or ScriptedPolicy(script),
        retriever=retriever or Library(),
        config=TreeConfig(**knobs),
        scorer=scorer or (lambda trajectory, query: Reward(float(trajectory.answer == "Oslo"))),
    )


def query(uid="u1"):
    return Query(uid=uid, question="capital", prompt_ids=tuple(ord(c) + 1 for c in PROMPT))


def grow(an_agent, uid="u1", step=0):
    return asyncio.run(grow_forest(query(uid), an_agent, step=step))


def search_twice_then_answer(text):
    searches = text.count("</search>")
    return f"<search>q{searches}</search>" if searches < 2 else "<answer>Oslo</answer>"


def always_search(text):
    return "<search>q</search>"


def only_leaf(forest):
    (t, leaf), *rest = forest.leaves()
    assert not rest
    return forest.trees[t].trajectory(leaf)


@pytest.mark.parametrize(("M", "N", "L", "K"), [(1, 0, 0, None), (2, 2, 1, 3), (2, 3, 2, 4)])
def test_a_forest_has_m_trees_of_one_plus_ln_leaves_of_which_k_are_kept(M, N, L, K):
    an_agent = agent(search_twice_then_answer, M=M, N=N, L=L, K=K)
    forest = grow(an_agent)
    assert len(forest.trees) == M
    assert [len(t.leaves) for t in forest.trees] == [1 + L * N] * M
    assert len(list(forest.leaves())) == an_agent.config.leaves_per_prompt


def test_concatenating_a_path_gives_exactly_what_the_engine_saw():
    policy = ScriptedPolicy(search_twice_then_answer)
    forest = grow(agent(None, policy=policy, M=2, N=2, L=1))
    seen = Counter(tuple(context) for context in policy.contexts)
    held = Counter(
        tuple(tree.context(node.parent))
        for tree in forest.trees
        for node in tree.nodes
        if node.step is not None
    )
    assert seen == held


def test_all_requests_of_a_prompt_share_one_request_id():
    policy = ScriptedPolicy(search_twice_then_answer)
    grow(agent(None, policy=policy, M=2, N=2, L=1), uid="abc")
    assert set(policy.request_ids) == {"abc"}


def test_observations_are_masked_and_carry_no_log_prob():
    trajectory = only_leaf(grow(agent(search_twice_then_answer, M=1, N=0, L=0)))
    text = ScriptedPolicy(always_search).decode(
        [i for i, m in zip(trajectory.response_ids, trajectory.response_mask, strict=True) if m]
    )
    assert text == "<search>q0</search><search>q1</search><answer>Oslo</answer>"
    assert {
        lp
        for lp, owner in zip(trajectory.logprobs, trajectory.owners, strict=True)
        if owner is Owner.OBSERVATION
    } == {0.0}


def test_the_same_seed_gives_the_same_forest_whatever_finishes_first():
    class Jitter(ScriptedPolicy):
        async def generate(self, *args, **kwargs):
            await asyncio.sleep(random.random() / 200)
            return await super().generate(*args, **kwargs)

    def shape(seed):
        policy = Jitter(search_twice_then_answer)
        forest = grow(agent(None, policy=policy, M=2, N=3, L=2, K=3, seed=seed))
        return [[(n.parent, n.depth, n.kept) for n in t.nodes] for t in forest.trees]

    assert shape(1) == shape(1)
    assert any(shape(1) != shape(seed) for seed in (2, 3, 4))


def test_different_prompts_and_steps_draw_different_branches():
    def shape(uid, step):
        forest = grow(agent(search_twice_then_answer, M=1, N=6, L=1), uid, step)
        return [n.parent for n in forest.trees[0].nodes]

    assert len({tuple(shape(u, s)) for u in ("a", "b", "c") for s in (0, 1)}) > 1


# FC-21
def test_a_policy_that_only_searches_gets_three_generations_and_two_searches_at_limit_two():
    library = Library()
    forest = grow(agent(always_search, retriever=library, M=1, N=0, L=0, max_turns=2))
    trajectory = only_leaf(forest)
    assert len(trajectory.steps) == 3
    assert len(library.calls) == 2 == forest.cost.tool_calls
    assert trajectory.stop is StopReason.MAX_TURNS and trajectory.answer is None
    assert forest.rewards() == [[0.0]]


def test_an_invalid_turn_uses_up_a_turn_and_is_answered_by_a_masked_sentence():
    library = Library()
    trajectory = only_leaf(
        grow(agent(lambda _: "hm", retriever=library, M=1, N=0, L=0, max_turns=2))
    )
    assert len(trajectory.steps) == 3 and not library.calls
    assert sum(trajectory.response_mask) == 3 * len("hm")
    assert "no valid action" in trajectory.steps[0].observation


def test_a_branch_starts_from_its_nodes_own_depth():
    forest = grow(agent(always_search, M=1, N=8, L=1, max_turns=2))
    depths = {forest.trees[0].nodes[leaf].depth for leaf in forest.trees[0].leaves}
    assert depths == {3}


# FC-05
def test_text_behind_the_action_is_gone_from_text_ids_and_log_probs():
    class Unstopped(ScriptedPolicy):
        async def generate(self, context_ids, *, request_id, max_tokens, stop):
            return await super().generate(
                context_ids, request_id=request_id, max_tokens=max_tokens, stop=()
            )

    tail = "\n<information>Doc 1 made up</information>\n<answer>Pharos</answer>"
    policy = Unstopped(lambda text: "<search>tallest lighthouse</search>" + tail)
    library = Library()
    trajectory = only_leaf(
        grow(agent(None, policy=policy, retriever=library, M=1, N=0, L=0, max_turns=1))
    )
    assert library.calls == ["tallest lighthouse"]
    step = trajectory.steps[0]
    assert step.text == "<search>tallest lighthouse</search>"
    assert len(step.token_ids) == len(step.logprobs) == len(step.text)
    assert len(trajectory.response_ids) == len(trajectory.response_mask) == len(trajectory.logprobs)


class PiecePolicy(ScriptedPolicy):
    """A vocabulary of pieces: what was sampled need not be what the text would encode to."""

    pieces: dict[int, str]

    def __init__(self, turns, pieces):
        super().__init__(lambda _: "")
        self.turns, self.pieces = list(turns), pieces

    async def generate(self, context_ids, *, request_id, max_tokens, stop):
        self.contexts.append(list(context_ids))
        ids = tuple(self.turns.pop(0))
        return Generation(ids, tuple(-0.1 * (i + 1) for i in range(len(ids))))

    def decode(self, token_ids):
        return "".join(self.pieces.get(i, chr(i - 1) if i else "") for i in token_ids)


def test_a_token_that_contains_the_stops_end_is_kept_as_sampled():
    pieces = {
        9001: "<search>",
        9002: "deep",
        9003: "</",
        9004: "search",
        9005: ">\n\n",
        9006: "<in",
    }
    policy = PiecePolicy([[9001, 9002, 9003, 9004, 9005, 9006], [9002]], pieces)
    trajectory = only_leaf(grow(agent(None, policy=policy, M=1, N=0, L=0, max_turns=1)))
    first = trajectory.steps[0]
    assert first.token_ids == (9001, 9002, 9003, 9004, 9005)
    assert first.text == "<search>deep</search>"
    assert len(first.logprobs) == 5


# FC-10
def test_sampled_ids_are_never_decoded_and_encoded_again():
    pieces = {901: "a", 902: "b", 903: "ab", 904: "<answer>", 905: "</answer>"}
    policy = PiecePolicy([[904, 901, 902, 905]], pieces)
    trajectory = only_leaf(grow(agent(None, policy=policy, M=1, N=0, L=0)))
    assert trajectory.response_ids == (904, 901, 902, 905)
    assert trajectory.answer == "ab"


def test_a_turn_the_model_closed_is_reopened_once_with_masked_template_ids():
    pieces = {901: "hm"}
    policy = PiecePolicy([[901, END_ID], [901]], pieces)
    trajectory = only_leaf(grow(agent(None, policy=policy, M=1, N=0, L=0, max_turns=1)))
    first = trajectory.steps[0]
    assert first.token_ids == (901, END_ID)
    assert first.observation_ids[0] == policy.reopen_ids[0]
    assert trajectory.response_mask[:3] == [1, 1, 0]
    assert policy.decode(first.observation_ids).count("\n\nThat turn") == 1


# FC-14
def test_a_dead_retriever_ends_the_branch_without_a_reward():
    forest = grow(agent(always_search, retriever=Library(fail=True), M=2, N=1, L=1))
    assert forest.rewards() == [[None, None], [None, None]]
    step = forest.trees[0].nodes[1].step
    assert step.stop is StopReason.ERROR
    assert step.failure.boundary == "retriever" and "did not answer" in step.failure.message


class DownOnce(Library):
    """The first search that arrives fails."""

    async def search(self, query, topk):
        first = not self.calls
        documents = await super().search(query, topk)
        if first:
            raise RetrieverError("down")
        return documents


def test_one_failed_leaf_leaves_its_siblings_scored():
    forest = grow(agent(search_twice_then_answer, retriever=DownOnce(), M=2, N=2, L=1))
    flat = [r for tree in forest.rewards() for r in tree]
    assert flat.count(None) == 1 and flat.count(1.0) == 5


def test_failed_leaves_are_kept_only_where_healthy_ones_run_out():
    forest = grow(agent(search_twice_then_answer, retriever=DownOnce(), M=1, N=2, L=1, K=2))
    assert forest.rewards() == [[1.0, 1.0]]


def test_a_policy_that_cannot_generate_ends_the_branch_too():
    def broken(_):
        raise PolicyError("aborted")

    forest = grow(agent(broken, M=1, N=0, L=0))
    assert forest.rewards() == [[None]]


def test_a_bug_in_the_scorer_propagates():
    def scorer(trajectory, query):
        raise KeyError("bug")

    with pytest.raises(KeyError):
        grow(agent(search_twice_then_answer, scorer=scorer, M=1, N=0, L=0))


@settings(max_examples=60, deadline=None)
@given(
    budget=st.integers(20, 400),
    turn=st.integers(5, 60),
    observation=st.integers(5, 80),
    seed=st.integers(0, 5),
)
def test_no_branch_ever_exceeds_its_context_budget(budget, turn, observation, seed):
    forest = grow(
        agent(
            always_search,
            M=2, N=2, L=1, max_turns=3, seed=seed,
            max_turn_tokens=turn, max_observation_tokens=observation, max_response_tokens=budget,
        )
    )  # fmt: skip
    for t, leaf in forest.leaves():
        trajectory = forest.trees[t].trajectory(leaf)
        assert 1 <= len(trajectory.response_ids) <= budget
        assert trajectory.owners[-1] is Owner.MODEL
        for step in trajectory.steps:
            assert len(step.token_ids) <= turn
            if step.action.kind is ActionKind.SEARCH:
                assert len(step.observation_ids) <= observation


def test_a_search_that_cannot_be_answered_within_the_budget_is_not_run():
    library = Library()
    forest = grow(agent(always_search, retriever=library, M=1, N=0, L=0, max_response_tokens=40))
    assert only_leaf(forest).stop is StopReason.MAX_TOKENS
    assert not library.calls


# FC-38
def test_a_full_window_stops_the_branch_and_never_loses_the_question():
    policy = ScriptedPolicy(lambda text: "<search>q</search>" + "x" * 40)
    forest = grow(agent(None, policy=policy, M=1, N=0, L=0, max_response_tokens=60, max_turns=9))
    trajectory = only_leaf(forest)
    assert trajectory.stop is StopReason.MAX_TOKENS
    assert trajectory.prompt_ids == query().prompt_ids
    assert all(policy.decode(context).startswith(PROMPT) for context in policy.contexts)


def chain_tree(num_inner):
    """A tree of one chain: ``num_inner`` inner nodes below the root, then a leaf."""
    action = Action(ActionKind.SEARCH, "q")
    inner = Step((1,), (0.0,), "x", action)
    leaf = Step((1,), (0.0,), "x", Action(ActionKind.ANSWER, "a"), stop=StopReason.ANSWERED)
    tree = Tree((1, 2))
    tree.attach(ROOT, [inner] * num_inner + [leaf])
    return tree


def test_random_draws_the_root_and_every_inner_node_equally_often():
    picks = Counter(EXPANDERS["random"](chain_tree(3), 40_000, random.Random(0)))
    assert set(picks) == {0, 1, 2, 3}
    assert all(9_500 < count < 10_500 for count in picks.values())


@given(inner=st.integers(0, 6), n=st.integers(0, 8), seed=st.integers(0, 99))
def test_random_distinct_avoids_the_root_and_repeats_only_when_it_must(inner, n, seed):
    picks = EXPANDERS["random_distinct"](chain_tree(inner), n, random.Random(seed))
    assert len(picks) == n
    if inner:
        assert ROOT not in picks
        assert len(set(picks)) == min(n, inner)
    else:
        assert set(picks) <= {ROOT}


def test_k_beyond_what_a_tree_grows_is_refused_with_the_range():
    with pytest.raises(ValueError, match=r"1 <= K <= 3"):
        TreeConfig(M=2, N=2, L=1, K=4)


def test_an_unknown_key_names_the_nearest_one():
    with pytest.raises(ValueError, match=r"tree\.max_turns"):
        TreeConfig.from_mapping({"max_turn": 2})
