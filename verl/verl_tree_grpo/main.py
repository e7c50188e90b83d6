"""``tree-grpo train``: compose the configuration, check it, print it or train.

    tree-grpo train task=multihop model=qwen2.5_3b machine=gpu8 budget=4 tree.M=4
    tree-grpo train machine=cpu model=geohop_tiny --dry-run

Arguments are hydra overrides. ``--dry-run`` (or ``DRY_RUN=1``) shows the composed configuration,
the sizes that follow from it and the checks, and starts nothing. Exit code 2 means the user has to
change something; it is decided before Ray starts and before anything is written.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence

from omegaconf import DictConfig, OmegaConf

from search_r1.ledger import paper_budget
from verl_tree_grpo.checks import Finding, inspect
from verl_tree_grpo.recipe import GROUPS, compose, data_parallel_size, options, tree_config

USER_ERROR = 2
FAILED = 1
DRY_RUN_FLAG = "--dry-run"
SHOWN = {
    "recipe": None,
    "tree": None,
    "data": (
        "train_files val_files max_prompt_length max_response_length train_batch_size "
        "val_batch_size seed"
    ),
    "algorithm": "adv_estimator use_kl_in_reward",
    "actor_rollout_ref.model": "path enable_gradient_checkpointing use_remove_padding",
    "actor_rollout_ref.actor": (
        "strategy ppo_mini_batch_size use_dynamic_bsz ppo_micro_batch_size_per_gpu "
        "ppo_max_token_len_per_gpu policy_loss.loss_mode loss_agg_mode clip_ratio_low "
        "clip_ratio_high clip_ratio_c use_kl_loss kl_loss_coef kl_loss_type entropy_coeff optim.lr "
        "optim.lr_warmup_steps_ratio fsdp_config.model_dtype fsdp_config.dtype "
        "fsdp_config.param_offload fsdp_config.optimizer_offload"
    ),
    "actor_rollout_ref.rollout": (
        "name n temperature top_p dtype max_model_len gpu_memory_utilization "
        "tensor_model_parallel_size calculate_log_probs val_kwargs.temperature val_kwargs.n "
        "agent.agent_loop_manager_class"
    ),
    "trainer": (
        "experiment_name default_local_dir logger device nnodes n_gpus_per_node "
        "total_training_steps save_freq test_freq v1.trainer_mode"
    ),
    "ray_kwargs.ray_init.runtime_env.env_vars": None,
}
"""The parts of verl's configuration that a recipe decides; None shows a part whole."""


def main(argv: Sequence[str] | None = None) -> int:
    """Train with the given overrides; 0 when the run ends, 2 where the configuration is refused."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if "-h" in arguments or "--help" in arguments:
        print(usage())
        return 0
    dry_run = DRY_RUN_FLAG in arguments or os.environ.get("DRY_RUN", "0") not in ("", "0")
    try:
        composed = compose([text for text in arguments if text != DRY_RUN_FLAG])
    except ValueError as error:
        print(f"tree-grpo train: {error}", file=sys.stderr)
        return USER_ERROR
    config, findings = inspect(composed, dry_run=dry_run)
    refused = any(finding.failed for finding in findings)
    if dry_run:
        print(OmegaConf.to_yaml(excerpt(config)))
        if not refused:
            print(table("Derived sizes", sizes(config)) + "\n")
        print(table("Checks", {finding.check: outcome(finding) for finding in findings}))
    if refused:
        failed = [f for f in findings if f.failed]
        lines = [f"  {f.check}: {text}" for f in failed for text in f.messages]
        print(f"tree-grpo train: {len(lines)} to correct first", *lines, sep="\n", file=sys.stderr)
        return USER_ERROR
    if not dry_run:
        apply_environment(config)
        return train(config)
    return 0


def train(config: DictConfig) -> int:
    """Run the training; a failure prints its traceback, then its cause as the last line."""
    from ray.exceptions import RayTaskError

    from verl_tree_grpo.run import run

    try:
        run(config)
    except RayTaskError as error:
        traceback.print_exc()
        cause = error.cause
        print(f"tree-grpo train: {type(cause).__name__}: {cause}", file=sys.stderr)
        return FAILED
    return 0


def usage() -> str:
    """The module's introduction and the options of every group."""
    lines = [f"  {group}={{{','.join(options(group))}}}" for group in GROUPS]
    return "\n".join([(__doc__ or "").strip(), "", "Groups:", *lines])


def excerpt(config: DictConfig) -> DictConfig:
    """The keys of ``SHOWN``, interpolations resolved where they can be."""
    shown = OmegaConf.create({})
    for part, keys in SHOWN.items():
        for key in [""] if keys is None else keys.split():
            path = f"{part}.{key}".rstrip(".")
            value = OmegaConf.select(config, path)
            if OmegaConf.is_config(value):
                value = OmegaConf.to_container(value, resolve=True)
            OmegaConf.update(shown, path, value, force_add=True)
    return shown


def sizes(config: DictConfig) -> dict[str, str]:
    """What a step amounts to, as rows of a table."""
    tree = tree_config(config)
    prompts, mini = config.data.train_batch_size, config.actor_rollout_ref.actor.ppo_mini_batch_size
    rows, chunk = prompts * tree.leaves_per_prompt, mini * tree.leaves_per_prompt
    ranks = data_parallel_size(config)
    budget = paper_budget(tree.M, tree.N, tree.L)
    return {
        "leaves a prompt": f"{tree.leaves_per_prompt} ({tree.M} trees, {tree.leaves_kept} each)",
        "expected cost": f"{budget:g} chains a prompt (M + M*L*N/2; the ledger measures it)",
        "rows a step": f"{rows} ({prompts} prompts)",
        "mini-batches a step": f"{prompts // mini} of {chunk} rows ({mini} prompts)",
        "rows a rank": f"{rows // ranks} ({ranks} data-parallel ranks)",
        "response tokens": f"{tree.response_tokens} ({tree.max_turns} searches and an answer)",
        "model length": f"{config.actor_rollout_ref.rollout.max_model_len} tokens",
        "steps": f"{config.trainer.total_training_steps}, save every {config.trainer.save_freq}, "
        f"test every {config.trainer.test_freq}",
    }


def table(title: str, rows: dict[str, str]) -> str:
    """Two aligned columns under a title; further lines of a cell are indented alike."""
    width = max(map(len, rows))
    indent = "\n" + " " * (width + 4)
    cells = [f"  {key:<{width}}  {cell}".replace("\n", indent) for key, cell in rows.items()]
    return "\n".join([title, *cells])


def outcome(finding: Finding) -> str:
    """``ok``, or what is wrong, marked by whether it forbids the run."""
    if not finding.ran:
        return "not checked: the files are not on this machine"
    mark = "FAILED" if finding.fatal else "warning"
    return "\n".join(f"{mark}: {text}" for text in finding.messages) or "ok"


def apply_environment(config: DictConfig) -> None:
    """Give this process the environment of the trainer's, before verl reads it.

    This package was imported before the platform was known, so the CPU platform registers here.
    """
    for name, value in config.ray_kwargs.ray_init.runtime_env.env_vars.items():
        os.environ[str(name)] = str(value)
    os.makedirs(os.path.dirname(os.environ["VERL_FILE_LOGGER_PATH"]), exist_ok=True)
    if os.environ.get("VERL_PLATFORM") == "cpu":
        from verl_tree_grpo import platform_cpu

        platform_cpu.register()


if __name__ == "__main__":
    sys.exit(main())
