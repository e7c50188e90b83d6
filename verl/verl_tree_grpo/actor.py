"""The worker that trains: upstream's actor, prepared in its own process."""

from __future__ import annotations

import os
from typing import Any

import torch

from verl_tree_grpo import masking
from verl_tree_grpo.upstream import ActorRolloutRefWorker


class TreeActorWorker(ActorRolloutRefWorker):
    """verl's actor-rollout-reference worker with the masked-loss guard installed."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        masking.install()
        super().__init__(*args, **kwargs)
        if os.environ.get("VERL_PLATFORM") == "cpu":
            # The engine idles while the trainer works, so the ranks share all cores; the
            # environment's OMP_NUM_THREADS is meant for everything else.
            ranks = int(os.environ.get("WORLD_SIZE", 1))
            torch.set_num_threads(max(1, (os.cpu_count() or 1) // ranks))
