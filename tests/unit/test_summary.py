"""A forest's numbers, a step's metrics, and the guards that stop a broken run."""

import asyncio

import pytest

from search_r1.config import TreeConfig
from search_r1.policies import ScriptedPolicy
from search_r1.protocols import RetrieverError
from search_r1.rollout import Agent, grow_forest
from search_r1.summary import (
    check_failures,
    check_probability_gap,
    check_versions,
    step_metrics,
    summarise_forest,
    validation_metrics,
)
from search_r1.testing import forest
from search_r1.types import Document, Generation, Query, Reward

PROMPT_IDS = tuple(range(1, 65))


class Library:
    async def search(self, query, topk):
        if query == "down":
            raise RetrieverError("connection refused")
        return [Document("1", "T", "some text about it")]


class CachingPolicy(ScriptedPolicy):
    """Reports as cached exactly what a block-wise prefix cache would hold."""

    def __init__(self, script, block_size):
        super().__init__(script)
        self.block_size = block_size
        self.blocks = set()

    async def generate(self, context_ids, **kwargs):
        out = await super().generate(context_ids, **kwargs)
        ids, size = list(context_ids), self.block_size
        full = (len(ids) - 1) // size
        cached = 0
        while cached < full and tuple(ids[: (cached + 1) * size]) in self.blocks:
            cached += 1
        computed = [*ids, *out.token_ids]
        for end in range(size, len(computed), size):
            self.blocks.add(tuple(computed[:end]))
        return Generation(out.token_ids, out.logprobs, num_cached_tokens=cached * size)


def grow(script, *, policy=None, block_size=4, subset="", **knobs):
    agent = Agent(
        policy=policy or ScriptedPolicy(script),
        retriever=Library(),
        config=TreeConfig(topk=1, **knobs),
        scorer=lambda t, q: Reward(float(t.answer is not None), {"em": float(t.answer == "a")}),
    )
    query = Query("u", "q", PROMPT_IDS, data_source="geohop")
    grown = asyncio.run(grow_forest(query, agent))
    return summarise_forest(grown, block_size=block_size, subset=subset)


def search_then_answer(text):
    return "<answer>a</answer>" if "</search>" in text else "<search>it</search>"


@pytest.mark.parametrize("block_size", [1, 4, 16])
def test_a_perfect_prefix_cache_serves_every_shared_block(block_size):
    policy = CachingPolicy(search_then_answer, block_size)
    summary = grow(None, policy=policy, block_size=block_size, M=1, N=3, L=2)
    assert summary.shared_blocks == summary.served_blocks > 0


def test_an_engine_without_a_cache_serves_no_block():
    summary = grow(search_then_answer, M=1, N=2, L=1)
    assert summary.shared_blocks > 0 and summary.served_blocks == 0


def test_flat_tokens_count_a_leaf_each_and_distinct_tokens_count_a_node_each():
    chains = grow(search_then_answer, M=2, N=0, L=0)
    tree = grow(search_then_answer, M=1, N=1, L=1)
    assert chains.flat_tokens - chains.distinct_tokens == len(PROMPT_IDS)
    assert tree.flat_tokens > tree.distinct_tokens


def test_metrics_of_a_step_add_up_tokens_and_average_shares():
    step = [grow(search_then_answer, M=2, N=0, L=0), grow(lambda _: "hm", M=2, N=0, L=0)]
    metrics = step_metrics(step)
    assert metrics["tree/leaves"] == 4 and metrics["tree/prompts"] == 2
    assert metrics["tree/tool_calls"] == 2
    assert metrics["tree/reward_mean"] == 0.5
    assert metrics["tree/mixed_prompts"] == 0.0
    assert metrics["tree/stop_answered"] == metrics["tree/stop_max_turns"] == 0.5


def test_a_prompt_is_mixed_when_its_leaves_differ_in_reward():
    mixed = summarise_forest(forest(rewards=[[1, 0, 0], [1, 1, 1]]))
    equal = summarise_forest(forest(rewards=[[1, 1], [1, 1]]))
    assert step_metrics([mixed, equal])["tree/mixed_prompts"] == 0.5


def test_validation_is_averaged_per_source_and_per_subset():
    rows = [
        grow(search_then_answer, subset="1", M=1, N=0, L=0),
        grow(lambda _: "<answer>b</answer>", subset="2", M=1, N=0, L=0),
    ]
    metrics = validation_metrics(rows)
    assert metrics["val-tree/geohop/em"] == 0.5
    assert metrics["val-tree/geohop/1/em"] == 1.0
    assert metrics["val-tree/geohop/2/em"] == 0.0


# FC-14
def test_too_many_failed_leaves_stop_the_run_and_name_the_cause():
    step = [grow(lambda _: "<search>down</search>", M=2, N=0, L=0)]
    with pytest.raises(RuntimeError, match=r"2 of 2 leaves.*retriever: .*connection refused"):
        check_failures(step, 0.1)


def test_a_few_failed_leaves_are_counted_and_the_run_goes_on():
    step = [summarise_forest(forest(rewards=[[1, 1], [1, None]]))]
    check_failures(step, 0.25)
    metrics = step_metrics(step)
    assert metrics["tree/error_leaves"] == 1 and metrics["tree/reward_mean"] == 1.0


# FC-46
def test_samples_from_other_weights_than_the_trainers_stop_the_run():
    class Versioned(ScriptedPolicy):
        async def generate(self, context_ids, **kwargs):
            out = await super().generate(context_ids, **kwargs)
            return Generation(out.token_ids, out.logprobs, weight_version=4)

    step = [grow(None, policy=Versioned(search_then_answer), M=1, N=0, L=0)]
    check_versions(step, expected=4)
    with pytest.raises(RuntimeError, match=r"versions \[4\], expected only 5"):
        check_versions(step, expected=5)


def test_a_probability_gap_beyond_the_limit_raises_an_alarm():
    check_probability_gap(0.015, 0.05)
    with pytest.raises(RuntimeError, match=r"0\.2000.*max_probability_gap"):
        check_probability_gap(0.20, 0.05)
