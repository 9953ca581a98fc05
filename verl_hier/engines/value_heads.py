"""verl's FSDP engine of a critic with several heads: one model with an output for each of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from types import SimpleNamespace
from typing import Any

import torch
import verl.utils.model
from tensordict import TensorDict
from verl.utils import tensordict_utils as tu
from verl.utils.device import get_device_id
from verl.workers.engine.base import EngineRegistry
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithValueHead
from verl.workers.utils.losses import value_loss

from verl_hier.training.value_heads import mask_of, returns_of, values_of

MODEL_TYPE = "value_heads"
"""What verl's registry of engines calls a critic with several heads."""


class ValueHeadsEngine(FSDPEngineWithValueHead):  # type: ignore[misc]
    """Critic with a value of each head in front of every token.

    Overridden seams (verl/workers/engine/fsdp/transformer_impl.py): `_build_module`, `prepare_model_outputs`,
    `forward_backward_batch`.

    Attributes:
        heads: names of the heads, in the order of the model's outputs; set before the model is built.
        spread: standard deviation of the weights that new heads begin with.
    """

    heads: tuple[str, ...]
    spread: float = 0.0

    def _build_module(self) -> torch.nn.Module:
        # verl's engines know two types of models.
        self.model_config.model_type = "value_model"
        with _loader(self.heads, self.spread):
            module: torch.nn.Module = super()._build_module()
            return module

    def forward_backward_batch(
        self, data: TensorDict, loss_function: Callable[..., Any] | None, forward_only: bool = False
    ) -> Any:
        """As verl's; the places of each head in the whole mini-batch, by which its loss is divided, travel along."""
        if loss_function is not None:
            counts = torch.stack([data[mask_of(head)].sum() for head in self.heads]).to(get_device_id())
            torch.distributed.all_reduce(counts, group=self.get_data_parallel_group())
            found = dict(zip(map(_places_of, self.heads), counts.tolist(), strict=True))
            tu.assign_non_tensor(data, **found)
        return super().forward_backward_batch(data, loss_function, forward_only)

    def prepare_model_outputs(
        self, output: Any, output_args: Mapping[str, Any], micro_batch: TensorDict, logits_processor_func: Any
    ) -> dict[str, torch.Tensor]:
        """The values of each head as verl makes those of one, under the name of its field."""
        found = {}
        for place, head in enumerate(self.heads):
            alone = SimpleNamespace(logits=output.logits[..., place : place + 1])
            values = super().prepare_model_outputs(alone, output_args, micro_batch, logits_processor_func)
            found[values_of(head)] = values["values"]
        return found


def value_heads_loss(
    config: Any,
    weights: Mapping[str, float],
    model_output: Mapping[str, torch.Tensor],
    data: TensorDict,
    dp_group: Any = None,
) -> tuple[torch.Tensor, dict[str, Any]]:
    """The weighted sum of verl's clipped value loss of each head over its own places.

    Args:
        config: verl's configuration of the critic.
        weights: head to weight.
        model_output: `values_of` each head, as the engine returns it.
        data: a micro-batch with the fields of each head.
        dp_group: data-parallel ranks.

    Returns:
        the loss, and `<head>/vf_loss` and `<head>/vf_clipfrac` of each head.
    """
    total, metrics = torch.zeros((), device=get_device_id()), {}
    for head, weight in weights.items():
        part = data.copy()
        part["values"], part["returns"] = data[values_of(head)], data[returns_of(head)]
        part["response_mask"] = data[mask_of(head)]
        # A mini-batch may have no place of a head, whose loss is then 0 and not 0 / 0.
        places = max(tu.get_non_tensor_data(data, _places_of(head), 0), 1)
        tu.assign_non_tensor(part, batch_num_tokens=places)
        loss, found = value_loss(config, {"values": model_output[values_of(head)]}, part, dp_group)
        total = total + weight * loss
        for name in ("vf_loss", "vf_clipfrac"):
            metrics[f"{head}/{name}"] = found[f"critic/{name}"]
    return total, metrics


def _places_of(head: str) -> str:
    """The number of places of a head in a mini-batch, over all ranks."""
    return f"value_places_{head}"


@contextmanager
def _loader(heads: Sequence[str], spread: float) -> Iterator[None]:
    """While a critic is built, load it with an output for each head.

    Reason: `verl.utils.model.load_valuehead_model` takes flash attention, whatever the configuration says, and the
    engine sets one output right before it calls it. The engine looks the function up when it needs it, so exchanging
    it for the call is enough.
    Link: https://github.com/verl-project/verl/blob/main/verl/utils/model.py
    Removal: when the configuration of a critic has a number of outputs.
    """

    def load(local_path: str, torch_dtype: torch.dtype, model_config: Any, trust_remote_code: bool) -> torch.nn.Module:
        return load_heads(local_path, torch_dtype, model_config, trust_remote_code, heads, spread)

    original = verl.utils.model.load_valuehead_model
    verl.utils.model.load_valuehead_model = load
    try:
        yield
    finally:
        verl.utils.model.load_valuehead_model = original


def load_heads(
    path: str, dtype: torch.dtype, config: Any, trust_remote_code: bool, heads: Sequence[str], spread: float = 0.0
) -> torch.nn.Module:
    """A token classifier of transformers on the model in `path`, whose labels are the heads.

    Outputs that the folder does not hold begin as 0, so that a new critic values everything at 0, or with weights of
    this spread, so that heads of one purpose differ; either way two runs agree.
    """
    from transformers import AutoModelForTokenClassification

    config.id2label = dict(enumerate(heads))
    config.label2id = {head: place for place, head in enumerate(heads)}
    model, report = AutoModelForTokenClassification.from_pretrained(
        path,
        dtype=dtype,
        config=config,
        attn_implementation=config._attn_implementation,
        trust_remote_code=trust_remote_code,
        output_loading_info=True,
    )
    parameters, generator = dict(model.named_parameters()), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name in sorted(report["missing_keys"]):
            parameters[name].copy_(torch.randn(parameters[name].shape, generator=generator) * spread)
    built: torch.nn.Module = model
    return built


@cache
def register_engines() -> None:
    """Put the engines into verl's registry, for every device. Idempotent."""
    EngineRegistry.register(MODEL_TYPE, ["fsdp", "fsdp2"], device=["cuda", "npu"])(ValueHeadsEngine)
    from verl_hier.runtime_cpu import is_active

    if is_active():
        from verl_hier.runtime_cpu.fsdp import CpuFsdp2, UnsupportedFsdp1Engine

        class CpuValueHeadsEngine(ValueHeadsEngine, CpuFsdp2):
            """The same without an accelerator."""

        EngineRegistry.register(MODEL_TYPE, "fsdp2", device="cpu")(CpuValueHeadsEngine)
        EngineRegistry.register(MODEL_TYPE, "fsdp", device="cpu")(UnsupportedFsdp1Engine)
