"""verl's FSDP2 engines, registered for the device `cpu`."""

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import verl.utils.model
from verl.workers.engine.base import EngineRegistry
from verl.workers.engine.fsdp.transformer_impl import FSDPEngine, FSDPEngineWithLMHead, FSDPEngineWithValueHead


class CpuFsdp2(FSDPEngine):
    """What differs from verl's engine on a CPU: no offload, because parameters already live in main memory."""

    engine_config: Any

    def _build_fsdp_module(self, module: torch.nn.Module) -> torch.nn.Module:
        """Wrap `module` with FSDP2 and no offload policy.

        verl offloads a reference policy through pinned host memory, which needs an accelerator. The configuration is
        exchanged only while the parent reads it: `forward_only` must keep its meaning everywhere else (no optimiser).
        """
        configured = self.engine_config
        self.engine_config = dataclasses.replace(configured, forward_only=False, offload_policy=False)
        try:
            wrapped: torch.nn.Module = super()._build_fsdp_module(module)
            return wrapped
        finally:
            self.engine_config = configured


@EngineRegistry.register(model_type="language_model", backend="fsdp2", device="cpu")
class CpuFsdp2EngineWithLMHead(CpuFsdp2, FSDPEngineWithLMHead):
    """Actor, reference policy and SFT."""


@EngineRegistry.register(model_type="value_model", backend="fsdp2", device="cpu")
class CpuFsdp2EngineWithValueHead(CpuFsdp2, FSDPEngineWithValueHead):
    """Critic."""

    def _build_module(self) -> torch.nn.Module:
        with _value_model_with_configured_attention():
            module: torch.nn.Module = super()._build_module()
            return module


@contextmanager
def _value_model_with_configured_attention() -> Iterator[None]:
    """While a critic is built, load it with the attention of its configuration.

    Reason: `verl.utils.model.load_valuehead_model` asks for flash_attention_2 whatever `override_config` says, which
    has no CPU kernels. The parent looks the function up when it needs it, so exchanging it for the call is enough.
    Link: https://github.com/verl-project/verl/blob/main/verl/utils/model.py
    Removal: when load_valuehead_model leaves the attention implementation to `model_config`.
    """
    original = verl.utils.model.load_valuehead_model
    verl.utils.model.load_valuehead_model = _load_value_model
    try:
        yield
    finally:
        verl.utils.model.load_valuehead_model = original


def _load_value_model(
    local_path: str, torch_dtype: torch.dtype, model_config: Any, trust_remote_code: bool
) -> torch.nn.Module:
    """A token classifier with one label on the language model at `local_path`: its value head."""
    from transformers import AutoModelForTokenClassification

    model: torch.nn.Module = AutoModelForTokenClassification.from_pretrained(
        local_path,
        dtype=torch_dtype,
        config=model_config,
        attn_implementation=model_config._attn_implementation or "sdpa",
        trust_remote_code=trust_remote_code,
    )
    return model


@EngineRegistry.register(model_type="language_model", backend="fsdp", device="cpu")
@EngineRegistry.register(model_type="value_model", backend="fsdp", device="cpu")
class UnsupportedFsdp1Engine(FSDPEngine):
    """Says in a sentence why FSDP1 cannot be used, instead of verl's "no engine registered"."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise ValueError(
            "The strategy 'fsdp' (FSDP1) synchronises its module states on an accelerator and cannot run on a CPU. "
            "Set actor_rollout_ref.actor.strategy=fsdp2, and critic.strategy=fsdp2 where a critic is used "
            "(engine.strategy=fsdp2 for SFT)."
        )
