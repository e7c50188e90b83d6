"""The registered trainer ``tree``: verl's synchronous trainer, tree ids, tree metrics, guards."""

from __future__ import annotations

import time
from typing import Any

import ray
import torch
import transfer_queue as tq
from omegaconf import open_dict
from tensordict import TensorDict

from search_r1.summary import (
    ForestSummary,
    check_probability_gap,
    check_versions,
    step_metrics,
    validation_metrics,
)
from verl_tree_grpo import masking
from verl_tree_grpo.actor import TreeActorWorker
from verl_tree_grpo.advantage import register_estimators, row_advantages
from verl_tree_grpo.upstream import (
    ActorRolloutRefWorker,
    PPOTrainerSync,
    register_adv_est,
    register_trainer,
    response_to_nested,
)

BASE_MODE = "sync"
POLL_INTERVAL_S = 0.05
"""The replay buffer's wait between looks; upstream's 2 s would dominate short steps."""


@register_trainer("tree")
class TreeTrainer(PPOTrainerSync):
    """Synchronous PPO over tree rollouts.

    Differences to its parent: it waits for the workers' reports before it samples (so failures stop
    the step before it trains), computes advantages with :mod:`search_r1.credit`, and logs ``tree/``
    and ``val-tree/`` metrics.
    """

    def __init__(self, config: Any) -> None:
        # Upstream compares the mode with "sync" when it chooses buffers and checkpoints.
        with open_dict(config):
            config.trainer.v1.trainer_mode = BASE_MODE
        super().__init__(config)
        self.replay_buffer.poll_interval = POLL_INTERVAL_S
        self._forests: list[ForestSummary] = []
        masking.install()

    def _init_resource_pool_mgr(self) -> None:
        """Let the training roles run our worker, which prepares its process."""
        super()._init_resource_pool_mgr()
        for role, worker in self.role_worker_mapping.items():
            if worker.__ray_actor_class__ is ActorRolloutRefWorker:
                self.role_worker_mapping[role] = ray.remote(TreeActorWorker)

    def fit(self, agent_loop_manager: Any) -> None:
        """Train; a run that would train no step is an error (FC-44)."""
        done, wanted = self.global_steps, self.total_training_steps
        if done >= wanted and not self.config.trainer.get("val_only", False):
            raise ValueError(
                f"the checkpoint in {self.config.trainer.default_local_dir} is at step {done} and "
                f"trainer.total_training_steps is {wanted}: nothing is left to train. Raise it, "
                "choose another trainer.default_local_dir, or set trainer.resume_mode=disable"
            )
        super().fit(agent_loop_manager)

    def on_sample_begin(self) -> None:
        """Wait for the step's forests; raises before anything is trained on a broken rollout."""
        super().on_sample_begin()
        self._forests = self.agent_loop_manager.collect()

    def on_sample_end(self) -> None:
        """Count what dynamic filtering asked for in addition."""
        self._forests += self.agent_loop_manager.collect()
        check_versions(self._forests, expected=self.global_steps - 1)
        super().on_sample_end()

    def _compute_old_log_prob(self, batch: Any, metrics: dict[str, Any]) -> Any:
        """Upstream's, then a look at how far the engine's probabilities are from the trainer's."""
        batch = super()._compute_old_log_prob(batch, metrics)
        gap = metrics.get("training/rollout_probs_diff_mean")
        if gap is not None:
            check_probability_gap(float(gap), self.config.tree.max_probability_gap)
        return batch

    def _compute_advantage(self, batch: Any, metrics: dict[str, Any]) -> Any:
        """Advantages by prompt and tree; padding rows get zero and touch no group."""
        if self.config.algorithm.use_kl_in_reward:
            raise ValueError(
                "algorithm.use_kl_in_reward=true shifts token rewards, which outcome estimators do "
                "not read; use actor_rollout_ref.actor.use_kl_loss=true instead"
            )
        started = time.perf_counter()
        data = tq.kv_batch_get(
            keys=batch.keys,
            partition_id=batch.partition_id,
            select_fields=["uid", "tree_uid", "response_mask", "rm_scores"],
        )
        mask = data["response_mask"]
        uids, tree_uids = _strings(data["uid"]), _strings(data["tree_uid"])
        rewards = data["rm_scores"].to_padded_tensor(0.0).sum(-1)
        advantages = row_advantages(self.config.algorithm.adv_estimator, rewards, uids, tree_uids)
        spread = response_to_nested(advantages[:, None] * mask.to_padded_tensor(0), mask)
        fields = TensorDict({"advantages": spread, "returns": spread}, batch_size=len(batch))
        batch = tq.kv_batch_put(keys=batch.keys, partition_id=batch.partition_id, fields=fields)
        real = torch.tensor([not uid.startswith("pad") for uid in uids])
        metrics |= step_metrics(self._forests)
        metrics["tree/advantage_abs_mean"] = float(advantages[real].abs().mean())
        metrics["tree/advantage_s"] = time.perf_counter() - started
        metrics["tree/padding_rows"] = float((~real).sum())
        return batch

    def _validate(self) -> dict[str, float]:
        """Upstream's validation plus means per data source and subset."""
        metrics = super()._validate()
        forests = self.agent_loop_manager.collect_validation()
        return metrics | validation_metrics(forests)


def _strings(column: Any) -> list[str]:
    values = column.tolist() if hasattr(column, "tolist") else list(column)
    return [str(value) for value in values]


register_estimators(register_adv_est)
