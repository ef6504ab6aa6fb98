"""The CPU as a verl platform: one pretend accelerator a worker."""

from __future__ import annotations

import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import psutil
import torch
from verl.plugin.platform import PlatformBase, PlatformRegistry

PLATFORM_NAME = "cpu"


@PlatformRegistry.register(platform=PLATFORM_NAME)
class CPUPlatform(PlatformBase):
    """Runs verl's workers on the CPU; chosen by the environment variable `VERL_PLATFORM=cpu`.

    Ray counts accelerators as its `GPU` resource, so the job must pretend to have one a worker:
    `ray_kwargs.ray_init.num_gpus`.
    """

    @property
    def device_name(self) -> str:
        return "cpu"

    @property
    def vendor_name(self) -> str:
        return "cpu"

    @property
    def device_module(self) -> ModuleType:
        return _DEVICE_MODULE

    def is_available(self) -> bool:
        return True

    def is_platform_available(self, use_smi_check: bool = False) -> bool:
        """Never detected on its own: the head node of a GPU cluster has a CPU too."""
        return False

    def current_device(self) -> Any:
        """The device that verl hands to `tensor.to`, where a bare index would mean an accelerator."""
        return torch.device("cpu")

    def device_count(self) -> int:
        return 1

    def set_device(self, device_index: int) -> None:
        """There is one device."""

    def synchronize(self, device_index: int | None = None) -> None:
        """CPU operations have finished when they return."""

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings: str) -> None:
        """The CPU allocator has no such settings."""

    def empty_cache(self) -> None:
        """The CPU allocator keeps no cache."""

    def get_device_capability(self, device_index: int = 0) -> tuple[int | None, int | None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CUDA_VISIBLE_DEVICES"

    @contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        yield

    def profiler_start(self) -> None:
        """No device profiler."""

    def profiler_stop(self) -> None:
        """No device profiler."""

    def ray_resource_name(self) -> str:
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        return []

    def is_ipc_supported(self) -> bool:
        return False

    def cudart(self) -> Any:
        return None


def peak_memory(device: Any = None) -> int:
    """Largest resident set of this process so far, in bytes.

    Example:
        >>> peak_memory() > 2**20
        True
    """
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def free_and_total_memory(device: Any = None) -> tuple[int, int]:
    """Memory of the machine, in bytes: what is free, and all of it.

    Example:
        >>> free, total = free_and_total_memory()
        >>> 0 < free < total
        True
    """
    memory = psutil.virtual_memory()
    return memory.available, memory.total


def _device_module() -> ModuleType:
    """`torch.cpu` with the members of `torch.cuda` that verl asks for."""
    module = ModuleType("coba_rl_cpu_device", "torch.cpu, with what verl expects of an accelerator module.")
    module.__dict__.update({name: getattr(torch.cpu, name) for name in torch.cpu.__all__})
    module.__dict__.update(
        get_device_name=lambda device=None: "CPU",
        current_device=lambda: torch.device("cpu"),
        empty_cache=lambda: None,
        get_rng_state=lambda device=None: torch.get_rng_state(),
        set_rng_state=lambda state, device=None: torch.set_rng_state(state),
        memory_allocated=lambda device=None: 0,
        memory_reserved=lambda device=None: 0,
        mem_get_info=free_and_total_memory,
        max_memory_allocated=peak_memory,
        max_memory_reserved=peak_memory,
        reset_peak_memory_stats=lambda device=None: None,
    )
    return module


_DEVICE_MODULE = _device_module()
