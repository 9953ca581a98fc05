"""The functions of verl that name the device `cpu` twice."""

import functools
import os
from collections.abc import Callable
from datetime import timedelta
from types import ModuleType
from typing import Any

CPU_BACKEND = "cpu:gloo"


def use_one_backend_for_cpu(distributed: ModuleType) -> None:
    """Make `verl.utils.distributed` build its process groups with `cpu:gloo` where it would ask for it twice.

    Reason: both initialisers ask for `f"cpu:gloo,{device}:{backend}"`, which on a CPU is `cpu:gloo,cpu:gloo` and is
    refused by torch ("Duplicate device type"). The workers of actor, critic and SFT import the initialisers by name
    when they are first needed, after this has run, so every role is covered without a line in the recipe. A group of
    one rank also meets itself in memory: verl would look for a free port and open it seconds later, when another
    process may have taken it.
    Link: https://github.com/verl-project/verl/blob/main/verl/utils/distributed.py
    Removal: when both initialisers leave out the second entry for the device `cpu`.

    Args:
        distributed: The module `verl.utils.distributed`, just imported.
    """
    import torch.distributed

    seam: Any = distributed
    original_ray: Callable[..., None] = seam.initialize_global_process_group_ray

    @functools.wraps(original_ray)
    def initialize_for_ray(timeout_second: float | None = None, backend: str | None = None) -> None:
        if int(os.environ.get("WORLD_SIZE", 1)) > 1 or torch.distributed.is_initialized():
            original_ray(timeout_second=timeout_second, backend=backend or CPU_BACKEND)
            return
        options: dict[str, Any] = {} if timeout_second is None else {"timeout": timedelta(seconds=timeout_second)}
        # Any: torch's stubs do not export the store.
        library: Any = torch.distributed
        library.init_process_group(backend or CPU_BACKEND, store=library.HashStore(), rank=0, world_size=1, **options)

    @functools.wraps(seam.initialize_global_process_group)
    def initialize_for_torchrun(timeout_second: float = 36000) -> tuple[int, int, int]:
        options: dict[str, Any] = {"timeout": timedelta(seconds=timeout_second)}
        torch.distributed.init_process_group(
            backend=CPU_BACKEND, init_method=os.environ.get("DIST_INIT_METHOD"), **options
        )
        return int(os.environ["LOCAL_RANK"]), int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])

    seam.initialize_global_process_group_ray = initialize_for_ray
    seam.initialize_global_process_group = initialize_for_torchrun
