"""When the runtime is active, what it registers, and that a GPU machine is left alone."""

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from verl_hier.runtime_cpu import activation

FORKING = """
import json, os, sys
import ray, tensordict, torch, transformers
for line in sys.stdin:
    code, environment = json.loads(line)
    child = os.fork()
    if not child:
        os.environ.update(environment)
        exec(code, {"__name__": "__main__"})
        sys.stdout.flush()
        os._exit(0)
    _, status = os.waitpid(child, 0)
    print("END", status, flush=True)
"""
"""Imports what verl imports, and runs each piece of code in a fork, where verl has not been imported yet."""

Python = Callable[..., str]


@pytest.fixture(scope="module")
def python() -> Iterator[Python]:
    """`python(code, **variables)` is what code prints in a process of its own; VERL_PLATFORM is unset unless given."""
    plain = {name: value for name, value in os.environ.items() if name != "VERL_PLATFORM"}
    process = subprocess.Popen(
        [sys.executable, "-c", FORKING], env=plain, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )

    def run(code: str, **environment: str) -> str:
        process.stdin.write(json.dumps([textwrap.dedent(code), environment]) + "\n")
        process.stdin.flush()
        printed = []
        while not (line := process.stdout.readline()).startswith("END"):
            assert line, "the process has ended"
            printed.append(line)
        assert line == "END 0\n", "the code failed; its traceback is above"
        return "".join(printed).strip()

    yield run
    process.stdin.close()
    process.wait()


REGISTRIES = """
from verl.trainer.ppo import core_algos
from verl.trainer.ppo.v1.trainer_base import TRAINER_REGISTRY
registries = [
    sorted(map(str, core_algos.ADV_ESTIMATOR_REGISTRY)),
    sorted(core_algos.POLICY_LOSS_REGISTRY),
    [name for name in sorted(TRAINER_REGISTRY) if not name.startswith("hier_")],
]
"""


@pytest.fixture(scope="module")
def imported(python: Python) -> dict[str, Any]:
    """What one interpreter sees that imports verl on a machine where the CPU runtime is wanted."""
    code = """
import json, os, socket, sys
import verl
modules = [m for m in sys.modules if m.startswith("verl_hier.runtime_cpu.")]
REGISTRIES
import torch.distributed
from verl.utils.distributed import initialize_global_process_group, initialize_global_process_group_ray
with socket.socket() as s:
    s.bind(("127.0.0.1", 0))
    s.listen()
    port = s.getsockname()[1]
    os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    # Another process has taken the port that verl chose.
    initialize_global_process_group_ray(timeout_second=None)
    initialize_global_process_group_ray(timeout_second=None)
    ray_group = str(torch.distributed.get_backend_config())
    torch.distributed.destroy_process_group()
group = [*initialize_global_process_group(timeout_second=60), str(torch.distributed.get_backend_config())]
print(json.dumps({"modules": modules, "registries": registries, "ray_group": ray_group, "group": group}))
"""
    return json.loads(python(code.replace("REGISTRIES", REGISTRIES), VERL_PLATFORM="cpu").splitlines()[-1])


@pytest.mark.parametrize(
    ("choice", "cuda", "hip", "wanted"),
    [
        ("cpu", "12.8", None, True),
        (" CPU ", None, None, True),
        ("nvidia", None, None, False),
        ("", None, None, True),
        ("", "12.8", None, False),
        ("", None, "6.3", False),
    ],
)
def test_who_wants_it(monkeypatch, tmp_path, choice, cuda, hip, wanted):
    """A CUDA build without a device may be the head node of a GPU cluster: only VERL_PLATFORM decides there."""
    monkeypatch.setenv("VERL_PLATFORM", choice)
    (tmp_path / "version.py").write_text(f"cuda, hip = {cuda!r}, {hip!r}")
    monkeypatch.setattr(torch.__spec__, "submodule_search_locations", [str(tmp_path)])
    assert activation.is_wanted() is wanted


def test_the_build_is_that_of_the_imported_torch(monkeypatch):
    monkeypatch.delenv("VERL_PLATFORM", raising=False)
    assert activation.is_wanted() is (torch.version.cuda is None and torch.version.hip is None)


def test_importing_verl_stays_light(imported):
    """Engines, server and weights are imported by the processes that use them."""
    assert imported["modules"] == [
        "verl_hier.runtime_cpu.prefork",
        "verl_hier.runtime_cpu.prefork.driver",
        "verl_hier.runtime_cpu.activation",
        "verl_hier.runtime_cpu.platform",
        "verl_hier.runtime_cpu.log_probs",
        "verl_hier.runtime_cpu.entry",
    ]


def test_importing_verl_with_us_installed_changes_no_registry(imported, python):
    """Our entry point is loaded by `import verl`; estimators, losses and trainers of stock verl stay as they are."""
    without = python(
        f"import json, verl\n{REGISTRIES}\nprint(json.dumps(registries))", VERL_USE_EXTERNAL_PLUGINS="none"
    )
    assert imported["registries"] == json.loads(without.splitlines()[-1])


def test_the_process_group_is_built_with_one_backend(imported):
    assert imported["ray_group"] == "cpu:gloo"
    assert imported["group"] == [0, 0, 1, "cpu:gloo"]


def test_nothing_is_registered_where_it_is_not_wanted(python):
    seen = python(
        """
        import verl
        from verl.plugin.platform import PlatformRegistry
        from verl.workers.rollout.base import _ROLLOUT_REGISTRY
        from verl.workers.rollout.replica import RolloutReplicaRegistry
        import verl.utils.distributed as distributed
        from verl_hier.runtime_cpu import is_active
        print(is_active(), "cpu" in PlatformRegistry.registered_names(),
              ("transformers", "async") in _ROLLOUT_REGISTRY, "transformers" in RolloutReplicaRegistry._registry,
              hasattr(distributed.initialize_global_process_group_ray, "__wrapped__"))
        """,
        VERL_PLATFORM="nvidia",
    )
    assert seen == "False False False False False"


@pytest.mark.parametrize("devices", ["", "-1", "0", "NoDevFiles", "GPU-8f2,GPU-1"])
def test_hidden_devices_do_not_count_as_slots_of_a_cpu_run(python, devices):
    """Ray refuses to start with 8 slots called GPU where the variable names fewer devices."""
    code = """
        import os, verl
        from ray._private.accelerators.nvidia_gpu import NvidiaGPUAcceleratorManager as Devices
        print(Devices.get_current_process_visible_accelerator_ids())
        """
    assert python(code, VERL_PLATFORM="cpu", CUDA_VISIBLE_DEVICES=devices) == "None"
    in_worker = python(code, VERL_PLATFORM="cpu", CUDA_VISIBLE_DEVICES=devices, RAY_JOB_ID="01000000")
    assert in_worker != "None", "what Ray gives its workers stays"


def test_a_plugin_module_may_be_imported_before_verl(python):
    """A Ray worker that unpickles our class imports this package first, and verl from inside of it."""
    seen = python(
        """
        import verl_hier.runtime_cpu.replica
        from verl.plugin.platform import get_platform
        from verl_hier.runtime_cpu import is_active
        print(get_platform().device_name, is_active())
        """,
        VERL_PLATFORM="cpu",
    )
    assert seen == "cpu True"


def test_a_platform_that_verl_has_chosen_already_is_an_error():
    from verl.plugin.platform import platform_manager

    class Other:
        device_name = "cuda"

    class Manager:
        PlatformRegistry = platform_manager.PlatformRegistry
        _current_platform = Other()

    with pytest.raises(RuntimeError, match="VERL_PLATFORM=cpu"):
        activation._register_platform(Manager)


def test_engines_replica_adapter_and_transport_are_found_by_verl():
    from verl.checkpoint_engine import CheckpointEngineRegistry
    from verl.workers.engine import EngineRegistry
    from verl.workers.rollout.base import get_rollout_class
    from verl.workers.rollout.replica import get_rollout_replica_class

    from verl_hier.runtime_cpu import adapter, checkpoint_engine, fsdp, replica

    assert EngineRegistry.get_engine_cls("language_model", "fsdp2") is fsdp.CpuFsdp2EngineWithLMHead
    assert EngineRegistry.get_engine_cls("value_model", "fsdp2") is fsdp.CpuFsdp2EngineWithValueHead
    assert get_rollout_class("transformers") is adapter.TransformersServerAdapter
    assert get_rollout_replica_class("transformers") is replica.TransformersReplica
    assert CheckpointEngineRegistry.get("gloo") is checkpoint_engine.GlooCheckpointEngine
    for kind in ("language_model", "value_model"):
        with pytest.raises(ValueError, match="strategy=fsdp2"):
            EngineRegistry.get_engine_cls(kind, "fsdp")()


def test_the_platform_answers_what_verl_asks():
    from verl.plugin.platform import get_platform
    from verl.utils import device
    from verl.utils.memory_utils import aggressive_empty_cache
    from verl.utils.profiler.performance import _get_current_mem_info

    platform = get_platform()
    assert (platform.device_name, platform.communication_backend_name()) == ("cpu", "gloo")
    assert torch.ones(1).to(device.get_device_id()).device.type == "cpu"
    assert platform.ray_resource_options(1) == {"num_gpus": 1}
    aggressive_empty_cache()
    _get_current_mem_info()
    module = device.get_torch_device()
    free, total = module.mem_get_info()
    assert 0 < free < total and 0 < module.memory_allocated() <= module.max_memory_allocated()
    state = module.get_rng_state()
    first = torch.rand(2)
    module.set_rng_state(state)
    assert torch.equal(torch.rand(2), first)
