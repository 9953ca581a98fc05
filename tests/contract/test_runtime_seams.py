"""Contracts with the installed verl and transformers: each failure names the seam that has moved."""

import inspect
from collections.abc import Callable

import pytest
import torch
from verl.checkpoint_engine.base import CheckpointEngine, CheckpointEngineManager
from verl.plugin.platform import PlatformBase, platform_manager
from verl.utils import distributed, torch_functional
from verl.utils import model as verl_model
from verl.workers.engine.base import EngineRegistry
from verl.workers.engine.fsdp import transformer_impl
from verl.workers.rollout import base as rollout_base
from verl.workers.rollout import llm_server
from verl.workers.rollout.replica import RolloutReplica, RolloutReplicaRegistry, TokenOutput

from verl_hier.runtime_cpu.adapter import TransformersServerAdapter
from verl_hier.runtime_cpu.checkpoint_engine import GlooCheckpointEngine
from verl_hier.runtime_cpu.platform import CpuPlatform
from verl_hier.runtime_cpu.replica import TransformersReplica
from verl_hier.runtime_cpu.server import TransformersServer


def check_arguments(seam: str, function: Callable, *names: str) -> None:
    parameters = inspect.signature(function).parameters
    missing = [name for name in names if name not in parameters]
    assert not missing, f"The seam {seam} has moved: it no longer takes {', '.join(missing)}."


def check_source(seam: str, thing: object, *pieces: str) -> None:
    source = inspect.getsource(thing)
    missing = [piece for piece in pieces if piece not in source]
    assert not missing, f"The seam {seam} has moved: its source no longer has {missing}."


def test_platform():
    assert hasattr(platform_manager, "_current_platform"), "The seam platform_manager._current_platform has moved."
    check_arguments("platform_manager.set_platform", platform_manager.set_platform, "platform")
    check_arguments("PlatformRegistry.register", platform_manager.PlatformRegistry.register, "platform")
    abstract = PlatformBase.__abstractmethods__
    missing = [name for name in abstract if name in CpuPlatform.__abstractmethods__]
    assert not missing, f"The seam PlatformBase has moved: new abstract methods {missing}."


def test_process_group_still_needs_the_fix():
    for function in (distributed.initialize_global_process_group, distributed.initialize_global_process_group_ray):
        original = function.__wrapped__
        check_arguments(f"verl.utils.distributed.{original.__name__}", original, "timeout_second")
        check_source(
            f"verl.utils.distributed.{original.__name__} (if it leaves out the second entry for cpu, the fix can go)",
            original,
            'f"cpu:gloo,{get_device_name()}:{get_nccl_backend()}"',
        )


@pytest.mark.parametrize(("rows", "vocabulary"), [(1, 7), (63, 259), (200, 190), (130, 49152)])
def test_log_probs_and_gradients_of_many_rows_are_the_bits_of_one_at_a_time(rows: int, vocabulary: int):
    together = torch_functional.logprobs_from_logits_v2
    alone = together.__wrapped__
    torch.manual_seed(0)
    logits = (3 * torch.randn(rows, vocabulary)).requires_grad_()
    labels, weight = torch.randint(0, vocabulary, (rows,)), torch.randn(rows)
    expected, found = (each(logits, labels) for each in (alone, together))
    assert torch.equal(found, expected)
    slopes = [torch.autograd.grad(each, logits, weight)[0] for each in (expected, found)]
    assert torch.equal(*slopes)


def test_engine_registry():
    check_arguments("EngineRegistry.register", EngineRegistry.register, "model_type", "backend", "device", "vendor")


def test_fsdp_engine():
    engine = transformer_impl.FSDPEngine
    check_arguments("FSDPEngine._build_fsdp_module", engine._build_fsdp_module, "module")
    check_source(
        "FSDPEngine._build_fsdp_module (which reads the offload policy from engine_config)",
        engine._build_fsdp_module,
        "self.engine_config.offload_policy or self.engine_config.forward_only",
        "CPUOffloadPolicy(pin_memory=True)",
    )
    check_source(
        "FSDPEngine._build_module (which looks load_valuehead_model up when it is called)",
        engine._build_module,
        "from verl.utils.model import load_valuehead_model",
        "load_valuehead_model(",
    )


def test_value_head_loader_still_needs_the_fix():
    loader = verl_model.load_valuehead_model
    check_arguments(
        "verl.utils.model.load_valuehead_model",
        loader,
        "local_path",
        "torch_dtype",
        "model_config",
        "trust_remote_code",
    )
    check_source(
        "load_valuehead_model (if it no longer insists on flash attention, the fix can go)",
        loader,
        'attn_implementation="flash_attention_2"',
    )


def test_rollout_registries():
    assert isinstance(rollout_base._ROLLOUT_REGISTRY, dict), "The seam rollout.base._ROLLOUT_REGISTRY has moved."
    key = ("vllm", "async")
    assert isinstance(rollout_base._ROLLOUT_REGISTRY.get(key), str), f"_ROLLOUT_REGISTRY[{key}] is no longer a name."
    check_arguments("RolloutReplicaRegistry.register", RolloutReplicaRegistry.register, "name", "loader")


def test_adapter():
    check_arguments("BaseRollout.update_weights", rollout_base.BaseRollout.update_weights, "weights", "wire_format")
    for name in rollout_base.BaseRollout.__abstractmethods__:
        ours = inspect.signature(getattr(TransformersServerAdapter, name)).parameters
        theirs = inspect.signature(getattr(rollout_base.BaseRollout, name)).parameters
        missing = set(theirs) - set(ours)
        assert not missing, f"The seam BaseRollout.{name} has moved: the adapter lacks {missing}."


def test_everything_a_replica_asks_of_a_server_is_there():
    """`server.<method>.remote` in verl's replica, and what the trainers of version 1 reach through it."""
    methods = (
        "wake_up sleep abort_all_requests resume_generation clear_kv_cache release_kv_cache resume_kv_cache "
        "start_profile stop_profile"
    ).split()
    for name in methods:
        assert hasattr(RolloutReplica, name), f"The seam RolloutReplica.{name} has moved."
        assert inspect.iscoroutinefunction(getattr(TransformersServer, name, None)), f"The server lacks {name}."
    check_source(
        "RolloutReplica.abort_all_requests", RolloutReplica.abort_all_requests, "reject_request=reject_request"
    )
    check_arguments("the server's abort_all_requests", TransformersServer.abort_all_requests, "reject_request")
    for name in ("launch_servers", "init_hybrid", "init_standalone", "init_colocated"):
        assert inspect.iscoroutinefunction(getattr(TransformersReplica, name, None)), (
            f"RolloutReplica.{name} has moved."
        )


def test_the_client_calls_generate_as_we_define_it():
    generate = llm_server.LLMServerClient.generate
    source = inspect.getsource(getattr(generate, "__wrapped__", generate))
    for argument in (
        "request_id=",
        "prompt_ids=prompt_ids",
        "sampling_params=sampling_params",
        "image_data=",
        "video_data=",
    ):
        assert argument in source, f"The seam LLMServerClient.generate has moved: it no longer passes {argument}"
    check_arguments(
        "the server's generate", TransformersServer.generate, "request_id", "prompt_ids", "sampling_params",
        "image_data", "video_data", "audio_data", "mm_processor_kwargs",
    )  # fmt: skip
    fields = set(TokenOutput.model_fields)
    expected = {"token_ids", "log_probs", "stop_reason", "num_preempted", "extra_fields"}
    assert expected <= fields, f"The seam TokenOutput has moved: it lacks {expected - fields}."


def test_checkpoint_engine():
    missing = [m for m in CheckpointEngine.__abstractmethods__ if m in GlooCheckpointEngine.__abstractmethods__]
    assert not missing, f"The seam CheckpointEngine has moved: new abstract methods {missing}."
    check_source(
        "CheckpointEngineManager.build_process_group",
        CheckpointEngineManager.build_process_group,
        '["prepare"]',
        "build_topology(",
        '"init_process_group"',
    )
    check_arguments("CheckpointEngine.send_weights", CheckpointEngine.send_weights, "weights", "global_steps")
    check_arguments("CheckpointEngine.receive_weights", CheckpointEngine.receive_weights, "global_steps")


def test_topology_of_a_weight_update():
    trainer, rollout = GlooCheckpointEngine.build_topology(3, 2, ["address", None, None, None, None])
    assert trainer == {"rank": [0, -1, -1], "world_size": [3] * 3, "address": ["address"] * 3}
    assert rollout == {"rank": [1, 2], "world_size": [3] * 2, "address": ["address"] * 2}


@pytest.mark.parametrize("name", ["update", "get_seq_length"])
def test_transformers_cache(name):
    from transformers.cache_utils import Cache

    assert hasattr(Cache, name), f"The seam transformers.Cache.{name} has moved."


def test_transformers_takes_a_ready_mask_as_it_is():
    from transformers import masking_utils

    prepare = masking_utils._preprocess_mask_arguments
    check_source("transformers.masking_utils._preprocess_mask_arguments", prepare, "len(attention_mask.shape) == 4")
