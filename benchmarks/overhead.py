"""What the plugin's own code costs a training step, outside engine, retriever and trainer.

Replays recorded forests: the policy answers at once with the turns it wrote then, the retriever
with the documents it found then, so all time left is rollout, parsing, tokenising observations,
scoring, summaries, records and advantages. Compared with the steps of the run that recorded them.

    .venv/bin/python benchmarks/overhead.py outputs/quickstart [--json FILE]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import torch
from omegaconf import OmegaConf
from transformers import AutoTokenizer

from search_r1.config import TreeConfig
from search_r1.record import read_forests, write_forest
from search_r1.rewards import REWARDS
from search_r1.rollout import Agent, grow_forest
from search_r1.summary import step_metrics, summarise_forest
from search_r1.tree import Forest
from search_r1.types import Document, Generation
from verl_tree_grpo.advantage import row_advantages
from verl_tree_grpo.demo.progress import read_metrics
from verl_tree_grpo.policy import HFCodec


class Replay:
    """Policy and retriever of one recorded forest, without any waiting."""

    def __init__(self, forest: Forest, codec: HFCodec) -> None:
        self.encode, self.decode = codec.encode, codec.decode
        self.reopen_ids, self.end_ids = codec.reopen_ids, codec.end_ids
        self.turns: dict[tuple[int, ...], list[Generation]] = defaultdict(list)
        self.documents: dict[str, list[Document]] = {}
        for tree in forest.trees:
            for node in tree.nodes:
                if node.step is not None:
                    context = tuple(tree.context(node.parent))
                    turn = Generation(node.step.token_ids, node.step.logprobs)
                    self.turns[context].append(turn)
                    self.documents.setdefault(node.step.action.text, list(node.step.documents))

    async def generate(
        self, context_ids: Sequence[int], *, request_id: str, max_tokens: int, stop: Sequence[str]
    ) -> Generation:
        recorded = self.turns[tuple(context_ids)]
        return recorded.pop(0) if len(recorded) > 1 else recorded[0]

    async def search(self, query: str, topk: int) -> list[Document]:
        return self.documents[query]


def one_step(forests: Sequence[Forest], codec: HFCodec, config: TreeConfig) -> float:
    """Seconds of our own code for a step of these prompts."""
    replays = [Replay(forest, codec) for forest in forests]

    async def grow() -> list[Forest]:
        agents = [Agent(r, r, config, REWARDS[config.reward]) for r in replays]
        pairs = zip(forests, agents, strict=True)
        return await asyncio.gather(*[grow_forest(f.query, agent) for f, agent in pairs])

    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        grown = asyncio.run(grow())
        step_metrics([summarise_forest(forest) for forest in grown])
        for forest in grown[: config.record_per_step]:
            write_forest(Path(folder) / "forests.jsonl", forest, step=0)
        rewards, uids, trees = [], [], []
        for forest in grown:
            for t, leaf in forest.leaves():
                trajectory = forest.trees[t].trajectory(leaf)
                assert len(trajectory.response_mask) == len(trajectory.response_ids)
                reward = forest.trees[t].nodes[leaf].reward
                rewards.append(reward.value if reward is not None else float("nan"))
                uids.append(forest.query.uid)
                trees.append(f"{forest.query.uid}/{t}")
        row_advantages("tree", torch.tensor(rewards), uids, trees)
        return time.perf_counter() - started


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="Cost of the plugin's own code per training step")
    parser.add_argument("run", type=Path, help="folder of a finished quickstart")
    parser.add_argument("--model", default="verl/verl_tree_grpo/demo/checkpoint")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    codec = HFCodec(AutoTokenizer.from_pretrained(args.model))
    forests = [record.forest for record in read_forests(args.run / "forests.jsonl")]
    saved = OmegaConf.load(args.run / "config.yaml")
    config = TreeConfig.from_mapping(OmegaConf.to_container(saved.tree))
    forests = (forests * saved.data.train_batch_size)[-saved.data.train_batch_size :]
    ours = sorted(one_step(forests, codec, config) for _ in range(7))[3]
    rows = read_metrics(args.run / "metrics.jsonl").values()
    steps = sorted(row["timing_s/step"] for row in rows if "timing_s/step" in row)
    step = steps[len(steps) // 2]
    result = {"ours_s": ours, "step_s": step, "share": ours / step, "prompts": len(forests)}
    print(json.dumps(result, indent=2))
    if args.json:
        args.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
