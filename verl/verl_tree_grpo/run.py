"""Hand a checked configuration over to verl."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ray
from omegaconf import OmegaConf

from verl_tree_grpo.upstream import (
    TaskRunnerV1,
    need_critic,
    need_reference_policy,
    run_ppo,
    validate_config,
)


class TreeTaskRunner(TaskRunnerV1.__ray_actor_class__):
    """verl's task runner, with the tree trainer and the estimators registered in its process."""

    def run(self, config: Any) -> None:
        """Run the training."""
        import verl_tree_grpo.trainer  # noqa: F401 - registers trainer and estimators

        super().run(config)


def run(config: Any) -> None:
    """Train. Blocks until the run ends; the Ray cluster it started goes down with it.

    Leaves the resolved configuration as ``config.yaml`` beside the checkpoints.
    """
    # run_ppo hands Ray the environment as it stands, interpolations included.
    OmegaConf.resolve(config)
    validate_config(
        config=config,
        use_reference_policy=need_reference_policy(config),
        use_critic=need_critic(config),
    )
    out = Path(config.trainer.default_local_dir).parent
    out.mkdir(parents=True, exist_ok=True)
    OmegaConf.save(config, out / "config.yaml")
    metrics = config.ray_kwargs.ray_init.runtime_env.env_vars.get("VERL_FILE_LOGGER_PATH")
    if metrics is not None:
        keep_earlier(Path(metrics))
    try:
        run_ppo(config, task_runner_class=ray.remote(TreeTaskRunner))
    finally:
        ray.shutdown()


def keep_earlier(path: Path) -> Path | None:
    """Move a metrics file out of the way of verl's logger, which would truncate it.

    ``metrics.jsonl`` becomes ``metrics.1.jsonl``, the next one ``metrics.2.jsonl``, and so on.
    Returns the new name, or None where there was nothing to keep.
    """
    if not path.exists() or path.stat().st_size == 0:
        return None
    number = 1
    while (kept := path.with_suffix(f".{number}{path.suffix}")).exists():
        number += 1
    path.rename(kept)
    return kept
