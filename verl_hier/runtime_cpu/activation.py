"""Decides whether this process needs the CPU runtime, and registers it with verl's own registries.

Nothing here imports FSDP, transformers or a verl module that `import verl` has not already loaded: each registration
waits for the import of the registry it belongs to.
"""

import logging
import os
import runpy
from collections.abc import Mapping
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from wrapt import register_post_import_hook

from verl_hier.runtime_cpu.prefork.driver import start_in_driver

logger = logging.getLogger(__name__)

PLATFORM_VARIABLE = "VERL_PLATFORM"
PLATFORM_NAME = "cpu"
VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"
_RAYS = "RAY_JOB_ID"
"""Variable that Ray sets in its workers."""

_active = False


def is_active() -> bool:
    """Whether `activate()` has registered the CPU runtime in this process."""
    return _active


def is_wanted() -> bool:
    """Whether this process should run verl on the CPU.

    An explicit `VERL_PLATFORM` decides. Without it only a PyTorch that was built for the CPU counts as "no
    accelerator": a CUDA or ROCm build without a visible device is also what a head node of a GPU cluster looks like,
    and there verl must keep its own choice.
    """
    choice = os.environ.get(PLATFORM_VARIABLE, "").strip().lower()
    if choice:
        return choice == PLATFORM_NAME
    build = _torch_build()
    return build["cuda"] is None and build["hip"] is None and find_spec("torch_npu") is None


def _torch_build() -> Mapping[str, Any]:
    """The constants of `torch/version.py`, read without importing torch, which takes seconds."""
    torch = find_spec("torch")
    assert torch is not None and torch.submodule_search_locations, "torch is not installed"
    return runpy.run_path(f"{torch.submodule_search_locations[0]}/version.py")


def activate() -> bool:
    """Register platform, process group, engines, rollout server and weight transport; idempotent.

    Returns:
        Whether the CPU runtime is active in this process.

    Raises:
        RuntimeError: If verl has already settled on another platform in this process.
    """
    global _active
    if _active:
        return True
    if not is_wanted():
        return False
    register_post_import_hook(_register_platform, "verl.plugin.platform.platform_manager")
    register_post_import_hook(_fix_process_group, "verl.utils.distributed")
    register_post_import_hook(_take_rows_together, "verl.utils.torch_functional")
    register_post_import_hook(_register_engines, "verl.workers.engine.fsdp.transformer_impl")
    register_post_import_hook(_register_replica, "verl.workers.rollout.replica")
    register_post_import_hook(_register_adapter, "verl.workers.rollout.base")
    register_post_import_hook(_register_checkpoint_engine, "verl.checkpoint_engine.base")
    _active = True
    forget_visible_devices()
    # Quiets a warning of TransferQueue, which reads it when it is imported.
    os.environ.setdefault("TQ_NUM_THREADS", "2")
    start_in_driver()
    logger.debug("CPU runtime of verl-hier is active")
    return True


def forget_visible_devices() -> None:
    """Take `CUDA_VISIBLE_DEVICES` out of the environment of a driver.

    Ray compares its slots called GPU, which are processes on a CPU here, with the devices in the variable, and does not
    start where it has fewer; those who want to be sure of a CPU set it to nothing.
    """
    if _RAYS not in os.environ:
        os.environ.pop(VISIBLE_DEVICES, None)


def _register_platform(manager: ModuleType) -> None:
    from verl_hier.runtime_cpu.platform import CpuPlatform

    manager.PlatformRegistry.register(platform=PLATFORM_NAME)(CpuPlatform)
    current = manager._current_platform
    if current is None:
        # Settled here, not by detection: verl's detection would choose CUDA where an nvidia-smi is on the path.
        manager.set_platform(CpuPlatform())
    elif current.device_name != PLATFORM_NAME:
        raise RuntimeError(
            f"verl has already settled on the platform {current.device_name!r} in this process, before verl-hier was "
            f"loaded. Set the environment variable {PLATFORM_VARIABLE}=cpu for the driver and, in the recipe, "
            f"ray_kwargs.ray_init.runtime_env.env_vars.{PLATFORM_VARIABLE}=cpu for its Ray processes."
        )


def _fix_process_group(distributed: ModuleType) -> None:
    from verl_hier.runtime_cpu.process_group import use_one_backend_for_cpu

    use_one_backend_for_cpu(distributed)


def _take_rows_together(functional: ModuleType) -> None:
    from verl_hier.runtime_cpu.log_probs import take_rows_together

    take_rows_together(functional)


def _register_engines(transformer_impl: ModuleType) -> None:
    # The import registers the classes (EngineRegistry.register is a decorator).
    import verl_hier.runtime_cpu.fsdp  # noqa: F401


def _register_replica(replica: ModuleType) -> None:
    from verl_hier.runtime_cpu.options import ROLLOUT_NAME

    def load() -> type:
        from verl_hier.runtime_cpu.replica import TransformersReplica

        return TransformersReplica

    replica.RolloutReplicaRegistry.register(ROLLOUT_NAME, load)


def _register_adapter(base: ModuleType) -> None:
    from verl_hier.runtime_cpu.options import ROLLOUT_NAME

    base._ROLLOUT_REGISTRY[(ROLLOUT_NAME, "async")] = "verl_hier.runtime_cpu.adapter.TransformersServerAdapter"


def _register_checkpoint_engine(base: ModuleType) -> None:
    import verl_hier.runtime_cpu.checkpoint_engine  # noqa: F401
