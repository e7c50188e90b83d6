"""Hand a checked configuration over to verl."""

from __future__ import annotations

import os
from typing import Any

import ray

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
    """Train. Blocks until the run ends; the Ray cluster it started goes down with it."""
    validate_config(
        config=config,
        use_reference_policy=need_reference_policy(config),
        use_critic=need_critic(config),
    )
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        run_ppo(config, task_runner_class=ray.remote(TreeTaskRunner))
    finally:
        ray.shutdown()
