"""The part of a `torch.<device>` namespace that verl calls, for the CPU.

verl asks `get_torch_device()` for memory figures, random state and synchronisation; `torch.cpu` has only some of them.
Memory is that of this process: "allocated" and "reserved" are both its resident set.
"""

import os
import platform
import resource
import sys
from typing import Any

import psutil
import torch
from torch.cpu import (  # noqa: F401  verl reads these as attributes of the device namespace
    Stream,
    StreamContext,
    current_stream,
    stream,
)

# ru_maxrss is in kibibytes on Linux and in bytes on macOS.
_MAXRSS_UNIT = 1 if sys.platform == "darwin" else 1024


def is_available() -> bool:
    """False: verl asks this before it talks to an accelerator, and there is none."""
    return False


def device_count() -> int:
    return 1


def current_device() -> int:
    return 0


def set_device(device: Any) -> None:
    """Nothing to select: there is one CPU device."""


def get_device_name(device: Any = None) -> str:
    """Starts with "CPU", the name of the entry in verl's table of peak FLOPS."""
    return f"CPU ({platform.processor() or platform.machine()})"


def synchronize(device: Any = None) -> None:
    """CPU operations have finished when the call returns."""


def empty_cache() -> None:
    """The CPU allocator keeps no cache that could be released."""


def memory_allocated(device: Any = None) -> int:
    """Resident set of this process in bytes."""
    return int(psutil.Process(os.getpid()).memory_info().rss)


def max_memory_allocated(device: Any = None) -> int:
    """Highest resident set of this process so far in bytes."""
    peak = int(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) * _MAXRSS_UNIT
    # The kernel updates its high-water mark late.
    return max(peak, memory_allocated())


memory_reserved = memory_allocated
max_memory_reserved = max_memory_allocated


def reset_peak_memory_stats(device: Any = None) -> None:
    """The operating system's high-water mark cannot be reset."""


def mem_get_info(device: Any = None) -> tuple[int, int]:
    """(available, total) bytes of main memory."""
    memory = psutil.virtual_memory()
    return int(memory.available), int(memory.total)


def get_rng_state(device: Any = None) -> torch.Tensor:
    return torch.get_rng_state()


def set_rng_state(state: torch.Tensor, device: Any = None) -> None:
    torch.set_rng_state(state)


def manual_seed(seed: int) -> None:
    torch.manual_seed(seed)


manual_seed_all = manual_seed
