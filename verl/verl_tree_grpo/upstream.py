"""Every name of verl 0.9.1 that this plugin leans on, and why; the only place that names them.

Names resolve on first use (``from verl_tree_grpo.upstream import PPOTrainerSync``), so importing
this module costs nothing. ``tests/contract`` checks each of them against the installed wheel.
"""

from __future__ import annotations

import importlib
from typing import Any

VERSION = "0.9.1"

SYMBOLS: dict[str, tuple[str, str]] = {
    # rollout
    "AgentLoopWorker": (
        "verl.experimental.agent_loop:AgentLoopWorker",
        "its __init__ is called directly; upstream's zero-argument super() fails in a Ray subclass",
    ),
    "AgentLoopWorkerTQ": (
        "verl.trainer.ppo.v1.agent_loop_tq:AgentLoopWorkerTQ",
        "_run_prompt is one prompt: the home of grow_forest; a Ray actor class",
    ),
    "AgentLoopManagerTQ": (
        "verl.trainer.ppo.v1.agent_loop_tq:AgentLoopManagerTQ",
        "agent_loop_workers_class chooses the worker",
    ),
    "AgentLoopOutput": (
        "verl.experimental.agent_loop.agent_loop:AgentLoopOutput",
        "one leaf, one output, one row",
    ),
    "AgentLoopMetrics": (
        "verl.experimental.agent_loop.agent_loop:AgentLoopMetrics",
        "required field of AgentLoopOutput",
    ),
    # trainer
    "PPOTrainerSync": (
        "verl.trainer.ppo.v1.trainer_sync:PPOTrainerSync",
        "base of the tree trainer; hooks on_sample_begin, on_sample_end, _compute_advantage",
    ),
    "register_trainer": (
        "verl.trainer.ppo.v1.trainer_base:register_trainer",
        "makes trainer.v1.trainer_mode=tree known",
    ),
    "register_adv_est": (
        "verl.trainer.ppo.core_algos:register_adv_est",
        "makes algorithm.adv_estimator names known",
    ),
    "response_to_nested": (
        "verl.workers.utils.padding:response_to_nested",
        "advantages go back to the queue as nested tensors",
    ),
    "TaskRunnerV1": (
        "verl.trainer.main_ppo:TaskRunnerV1",
        "runs in its own process: the place to register the trainer",
    ),
    "run_ppo": ("verl.trainer.main_ppo:run_ppo", "starts Ray and the task runner"),
    "validate_config": ("verl.utils.config:validate_config", "upstream's own configuration checks"),
    "need_critic": ("verl.trainer.ppo.utils:need_critic", "argument of validate_config"),
    "need_reference_policy": (
        "verl.trainer.ppo.utils:need_reference_policy",
        "argument of validate_config",
    ),
    "ActorRolloutRefWorker": (
        "verl.workers.engine_workers:ActorRolloutRefWorker",
        "the training worker; subclassed to prepare its process",
    ),
    "core_algos": (
        "verl.trainer.ppo:core_algos",
        "agg_loss is guarded against NaN under the mask",
    ),
    "losses": ("verl.workers.utils:losses", "imports agg_loss by name"),
    "trainer_base": ("verl.trainer.ppo.v1:trainer_base", "imports agg_loss by name"),
    # CPU platform
    "PlatformBase": ("verl.plugin.platform:PlatformBase", "interface of a platform"),
    "PlatformRegistry": ("verl.plugin.platform:PlatformRegistry", "register(platform='cpu')"),
    "EngineRegistry": (
        "verl.workers.engine.base:EngineRegistry",
        "engines are registered by device; the FSDP ones also work on a CPU",
    ),
    "FSDPEngineWithLMHead": (
        "verl.workers.engine.fsdp.transformer_impl:FSDPEngineWithLMHead",
        "policy and reference engine",
    ),
    "FSDPEngineWithValueHead": (
        "verl.workers.engine.fsdp.transformer_impl:FSDPEngineWithValueHead",
        "critic engine",
    ),
    "fsdp_engine": (
        "verl.workers.engine.fsdp:transformer_impl",
        "its CPUOffloadPolicy pins memory, which needs an accelerator",
    ),
    "distributed": (
        "verl.utils:distributed",
        "initialize_global_process_group_ray builds a backend string torch rejects on a CPU",
    ),
}


def __getattr__(name: str) -> Any:
    try:
        path, _ = SYMBOLS[name]
    except KeyError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
    module_name, _, attribute = path.partition(":")
    module = importlib.import_module(module_name)
    if hasattr(module, attribute):
        return getattr(module, attribute)
    return importlib.import_module(f"{module_name}.{attribute}")
