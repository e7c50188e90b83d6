"""Token fidelity on real vLLM output: the tree holds bit for bit what the engine saw."""

import json
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

# In a process of its own: an engine cannot be taken down inside a test process for certain.
PROBE = '''
import asyncio, json, sys, uuid
from collections import Counter
from vllm import AsyncEngineArgs, SamplingParams
from vllm.v1.engine.async_llm import AsyncLLM
from transformers import AutoModelForCausalLM, AutoTokenizer
import torch
from search_r1.config import TreeConfig
from search_r1.retrieval import HttpRetriever
from search_r1.rewards import REWARDS
from search_r1.rollout import Agent, grow_forest
from search_r1.summary import summarise_forest
from search_r1.types import Generation, Query
from verl_tree_grpo.policy import HFCodec

model, url, questions, block = sys.argv[1], sys.argv[2], json.loads(sys.argv[3]), 16


class Engine:
    """The rollout's policy over vLLM itself; remembers the ids the engine reports back."""

    def __init__(self, llm, codec):
        self.llm, self.codec, self.seen = llm, codec, Counter()
        self.encode, self.decode = codec.encode, codec.decode
        self.reopen_ids, self.end_ids = codec.reopen_ids, codec.end_ids

    async def generate(self, context_ids, *, request_id, max_tokens, stop):
        params = SamplingParams(temperature=1.0, max_tokens=max_tokens, stop=list(stop),
                                include_stop_str_in_output=True, logprobs=0)
        async for out in self.llm.generate({"prompt_token_ids": list(context_ids)}, params,
                                           request_id=uuid.uuid4().hex):
            pass
        done = out.outputs[0]
        ids = tuple(done.token_ids)
        self.seen[tuple(out.prompt_token_ids) + ids] += 1
        logprobs = tuple(step[i].logprob for i, step in zip(ids, done.logprobs))
        return Generation(ids, logprobs, num_cached_tokens=out.num_cached_tokens or 0)


async def grow():
    codec = HFCodec(AutoTokenizer.from_pretrained(model))
    llm = AsyncLLM.from_engine_args(AsyncEngineArgs(
        model=model, dtype="float32", enforce_eager=True, block_size=block, max_model_len=1024,
        enable_prefix_caching=True, logprobs_mode="processed_logprobs", seed=1))
    engine = Engine(llm, codec)
    config = TreeConfig(M=2, N=2, L=1, max_turn_tokens=64, max_observation_tokens=192)
    agent = Agent(engine, HttpRetriever(url), config, REWARDS["em"])
    forests = await asyncio.gather(*[
        grow_forest(Query(f"q{i}", q, tuple(codec.render([{"role": "user", "content": q}])),
                          ("x",), "geohop"), agent)
        for i, q in enumerate(questions)])
    await agent.retriever.close()
    llm.shutdown()
    return engine, forests


engine, forests = asyncio.run(grow())
held = Counter()
for forest in forests:
    for tree in forest.trees:
        for node in tree.nodes:
            if node.step is not None:
                held[tuple(tree.context(node.parent)) + node.step.token_ids] += 1
# A turn may be cut behind its action: the tree then holds a prefix of what was sampled.
exact = sum((engine.seen & held).values())
trainer = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
gaps = []
with torch.no_grad():
    for forest in forests:
        for t, leaf in forest.leaves():
            row = forest.trees[t].trajectory(leaf)
            ids = torch.tensor([row.prompt_ids + row.response_ids])
            logp = torch.log_softmax(trainer(ids).logits[0, :-1], -1)
            logp = logp.gather(-1, ids[0, 1:, None])[:, 0][len(row.prompt_ids) - 1:]
            mask = torch.tensor(row.response_mask, dtype=torch.bool)
            rollout = torch.tensor(row.logprobs)
            gaps.append((logp.exp() - rollout.exp())[mask].abs().mean().item())
summaries = [summarise_forest(f, block_size=block) for f in forests]
print("RESULT " + json.dumps({
    "requests": sum(engine.seen.values()), "nodes": sum(held.values()), "exact": exact,
    "gap": max(gaps), "errors": sum(r is None for s in summaries for r in s.rewards),
    "shared": sum(s.shared_blocks for s in summaries),
    "served": sum(s.served_blocks for s in summaries),
    "searches": sum(s.cost.tool_calls for s in summaries)}))
'''


@pytest.fixture(scope="module")
def checkpoint():
    from importlib.resources import files

    return str(files("verl_tree_grpo") / "demo" / "checkpoint")


def test_paths_equal_what_the_engine_saw_and_probabilities_agree(start_server, geohop, checkpoint):
    import os

    import pyarrow.parquet as pq

    rows = pq.read_table(geohop / "test.parquet").to_pylist()[:8]
    questions = [row["prompt"][0]["content"] for row in rows]
    env = os.environ | {
        "VERL_PLATFORM": "cpu",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    done = subprocess.run(
        [sys.executable, "-c", PROBE, checkpoint, start_server().url, json.dumps(questions)],
        capture_output=True, text=True, env=env, timeout=500, check=False,
    )  # fmt: skip
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    assert lines, done.stderr[-3000:]
    result = json.loads(lines[0].removeprefix("RESULT "))
    assert result["errors"] == 0 and result["searches"] > 0
    assert result["requests"] == result["nodes"] == result["exact"]
    assert result["gap"] < 1e-3
    assert result["served"] >= 0.9 * result["shared"] > 0
