"""vLLM on a CPU: keep linear weights after packing, so that weight updates find them.

Loaded in every vLLM process through the ``vllm.general_plugins`` entry point; does nothing on a
GPU.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any


def register() -> None:
    """Make vLLM's CPU linear layers keep the parameter they were packed from."""
    if os.environ.get("VERL_PLATFORM") != "cpu":
        return
    import vllm.model_executor.layers.utils as layers

    pack = layers.dispatch_cpu_unquantized_gemm
    if not isinstance(pack, KeepWeight):
        layers.dispatch_cpu_unquantized_gemm = KeepWeight(pack)


class KeepWeight:
    """vLLM's function that packs a linear layer, told never to remove the weight it packed."""

    def __init__(self, pack: Callable[[Any, bool], None]) -> None:
        self._pack = pack

    def __call__(self, layer: Any, remove_weight: bool) -> None:
        self._pack(layer, False)
