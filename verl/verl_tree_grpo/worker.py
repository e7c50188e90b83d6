"""verl's agent-loop worker and manager around :mod:`search_r1.rollout`; no algorithm in here.

One prompt grows one forest. Each healthy kept leaf becomes one row, keyed ``{uid}_{leaf}_0``, with
its own reward (upstream would give all rows of a session the reward of the last, FC-01) and its
``tree_uid``. Failed leaves become no row; upstream fills the batch up with padding rows.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
import transfer_queue as tq

from search_r1.config import TreeConfig
from search_r1.record import write_forest
from search_r1.retrieval import HttpRetriever
from search_r1.rewards import REWARDS
from search_r1.rewards.answers import flatten_answers
from search_r1.rollout import Agent, grow_forest
from search_r1.summary import ForestSummary, check_failures, summarise_forest
from search_r1.tree import Forest
from search_r1.types import Query, Trajectory
from verl_tree_grpo.policy import EnginePolicy, HFCodec
from verl_tree_grpo.upstream import (
    AgentLoopManagerTQ,
    AgentLoopMetrics,
    AgentLoopOutput,
    AgentLoopWorker,
    AgentLoopWorkerTQ,
)

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Collected:
    """What a worker did since it was last asked: forests, and the traceback of a bug if one hit."""

    summaries: list[ForestSummary]
    bug: str | None = None


class TreeWorker(AgentLoopWorkerTQ.__ray_actor_class__):
    """Grows the forest of each prompt and puts its leaves into the queue."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # Upstream's zero-argument super() fails inside a Ray-wrapped subclass.
        AgentLoopWorker.__init__(self, *args, **kwargs)
        tq.init()
        self.background_tasks: set[asyncio.Task[None]] = set()
        self.tree_config = TreeConfig.from_mapping(self.config.tree)
        self.codec = HFCodec(self.tokenizer)
        self.retriever = HttpRetriever(
            self.tree_config.retriever_url,
            timeout_s=self.tree_config.retriever_timeout_s,
            retries=self.tree_config.retriever_retries,
        )
        self.block_size = _block_size(self.config)
        self.collected = Collected([])
        self.recorded: dict[tuple[str, int], int] = {}

    async def collect(self) -> Collected:
        """Wait for every prompt handed to this worker, then report and forget."""
        while self.background_tasks:
            await asyncio.wait(set(self.background_tasks))
        collected, self.collected = self.collected, Collected([])
        return collected

    async def _run_prompt(
        self, prompt: dict, sampling_params: dict, trajectory: dict, trace: bool = False
    ) -> None:
        uid, validate = prompt["uid"], trajectory["validate"]
        partition = "val" if validate else "train"
        await tq.async_kv_put(key=uid, partition_id=partition, tag={"status": "running"})
        try:
            await self._grow(prompt, sampling_params, trajectory["step"], validate)
            status = "finished"
        except Exception:
            # Reported by collect(), which stops the run: this actor cannot raise into the trainer.
            logger.exception("prompt %s failed", uid)
            self.collected.bug = self.collected.bug or traceback.format_exc()
            status = "failure"
        await tq.async_kv_put(key=uid, partition_id=partition, tag={"status": status})

    async def _grow(self, prompt: dict, sampling_params: dict, step: int, validate: bool) -> None:
        config = self.tree_config
        if validate:
            config = config.chains(self.config.actor_rollout_ref.rollout.val_kwargs.n)
        agent = Agent(
            policy=EnginePolicy(self.codec, self.llm_client, sampling_params),
            retriever=self.retriever,
            config=config,
            scorer=REWARDS[config.validation_reward if validate else config.reward],
        )
        query = self._query(prompt)
        record = self._claim_record("val" if validate else "train", step)
        forest = await grow_forest(query, agent, step=step)
        subset = query.extra.get(config.validation_subset) if config.validation_subset else None
        self.collected.summaries.append(
            summarise_forest(
                forest, block_size=self.block_size, subset="" if subset is None else str(subset)
            )
        )
        if record is not None:
            write_forest(record, forest, step=step)
        await self._put_leaves(forest, prompt, validate)

    def _query(self, prompt: dict) -> Query:
        messages = list(prompt["raw_prompt"])
        prompt_ids = self.codec.render(messages)
        limit = self.config.data.max_prompt_length
        extra = {
            key: value
            for key, value in dict(prompt.get("extra_info") or {}).items()
            if isinstance(value, str | int | float | bool)
        }
        if len(prompt_ids) > limit:
            raise ValueError(
                f"the prompt of row {extra.get('index')} has {len(prompt_ids)} tokens, more than "
                f"data.max_prompt_length={limit}; raise the limit or shorten the question"
            )
        truth = prompt["reward_model"]["ground_truth"]
        golds = truth["target"] if isinstance(truth, dict) else truth
        return Query(
            uid=prompt["uid"],
            question=str(extra.get("question") or messages[-1]["content"]),
            prompt_ids=tuple(prompt_ids),
            golden_answers=tuple(flatten_answers(golds, row_id=str(extra.get("index")))),
            data_source=str(prompt.get("data_source", "")),
            extra=extra,
        )

    def _claim_record(self, partition: str, step: int) -> Path | None:
        """Where to record this forest, or None; the first prompts of each step are recorded."""
        if not self.tree_config.record or partition != "train":
            return None
        taken = self.recorded.get((partition, step), 0)
        if taken >= self.tree_config.record_per_step:
            return None
        self.recorded = {(partition, step): taken + 1}
        return Path(self.tree_config.record)

    async def _put_leaves(self, forest: Forest, prompt: dict, validate: bool) -> None:
        """One row per healthy kept leaf; a row's session id is its place among the kept leaves."""
        async with asyncio.TaskGroup() as group:
            for session_id, (t, leaf) in enumerate(forest.leaves()):
                node = forest.trees[t].nodes[leaf]
                if node.reward is None:
                    continue
                output = leaf_output(
                    forest.trees[t].trajectory(leaf), node.reward.value, dict(node.reward.metrics)
                )
                group.create_task(
                    self._agent_loop_postprocess(
                        output,
                        validate,
                        session_id=session_id,
                        tree_uid=f"{prompt['uid']}/{t}",
                        **prompt,
                    )
                )


def leaf_output(trajectory: Trajectory, reward: float, metrics: dict[str, float]) -> Any:
    """A leaf as upstream's output: response mask 1 on sampled tokens, 0 on observations."""
    versions = {v for s in trajectory.steps if (v := s.weight_version) is not None}
    assert trajectory.response_ids, "a healthy leaf has tokens"
    return AgentLoopOutput(
        prompt_ids=list(trajectory.prompt_ids),
        response_ids=list(trajectory.response_ids),
        response_mask=trajectory.response_mask,
        response_logprobs=list(trajectory.logprobs),
        reward_score=reward,
        num_turns=len(trajectory.steps),
        metrics=AgentLoopMetrics(
            generate_sequences=sum(s.cost.policy_s for s in trajectory.steps),
            tool_calls=sum(s.cost.tool_s for s in trajectory.steps),
        ),
        extra_fields={
            "reward_extra_info": metrics,
            "min_global_steps": min(versions, default=0),
            "max_global_steps": max(versions, default=0),
        },
    )


def _block_size(config: Any) -> int:
    """The engine's KV block size, tokens."""
    engine = config.actor_rollout_ref.rollout.get("engine_kwargs", {}).get("vllm") or {}
    return int(engine.get("block_size") or 16)


class TreeAgentLoopManager(AgentLoopManagerTQ):
    """Hands prompts to the tree workers and brings back what they did."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.agent_loop_workers_class = ray.remote(TreeWorker)
        self.validation: list[ForestSummary] = []

    def generate_sequences(self, prompts: Any) -> None:
        """Dispatch prompts. Validation also waits, so that its failures stop the run at once."""
        validate = bool(prompts["validate"]) if "validate" in prompts else False
        super().generate_sequences(prompts)
        if validate:
            self.validation += self.collect()

    def collect_validation(self) -> list[ForestSummary]:
        """The forests of the validation pass that just ended."""
        forests, self.validation = self.validation, []
        return forests

    def collect(self) -> list[ForestSummary]:
        """Wait for every dispatched prompt; raise on a bug or on too many failed leaves."""
        parts: list[Collected] = ray.get([w.collect.remote() for w in self.agent_loop_workers])
        for part in parts:
            if part.bug is not None:
                raise RuntimeError(f"a rollout worker failed:\n{part.bug}")
        summaries = [s for part in parts for s in part.summaries]
        check_failures(summaries, self.config.tree.max_error_fraction)
        return summaries
