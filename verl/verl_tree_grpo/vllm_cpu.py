"""vLLM on a CPU: keep linear weights after packing, so that weight updates find them.

Loaded in every vLLM process through the ``vllm.general_plugins`` entry point; does nothing on a
GPU.
"""

from __future__ import annotations

import os


def register() -> None:
    """Make vLLM's CPU linear layers keep the parameter they were packed from."""
    if os.environ.get("VERL_PLATFORM") != "cpu":
        return
    import vllm.model_executor.layers.utils as layers

    pack = layers.dispatch_cpu_unquantized_gemm
    if getattr(pack, "_keeps_weight", False):
        return

    def pack_and_keep(layer, remove_weight):
        return pack(layer, False)

    pack_and_keep._keeps_weight = True
    layers.dispatch_cpu_unquantized_gemm = pack_and_keep
