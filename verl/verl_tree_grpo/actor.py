"""The worker that trains: upstream's actor, prepared in its own process."""

from __future__ import annotations

from typing import Any

from verl_tree_grpo import masking
from verl_tree_grpo.upstream import ActorRolloutRefWorker


class TreeActorWorker(ActorRolloutRefWorker):
    """verl's actor-rollout-reference worker with the masked-loss guard installed."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        masking.install()
        super().__init__(*args, **kwargs)
