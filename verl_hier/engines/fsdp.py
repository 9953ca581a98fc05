"""verl's FSDP2 engines of policies and critics, which send every token that rows share through the model once."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import cache
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict
from verl.utils import tensordict_utils as tu
from verl.utils.device import get_device_id, get_device_name
from verl.workers.engine.base import EngineRegistry
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead, FSDPEngineWithValueHead
from verl.workers.engine.utils import postprocess_batch_func

from verl_hier.engines.attention import KEYWORD, NAME, Layout, kernel_of, register
from verl_hier.engines.packing import Edges, Packed
from verl_hier.engines.planner import Plan, Planner
from verl_hier.engines.refusals import refuse_batch, refuse_dropout, refuse_model, refuse_settings, refused
from verl_hier.errors import RecipeError
from verl_hier.training.sharing import Row

logger = logging.getLogger(__name__)

FLAGS = ("calculate_entropy", "calculate_sum_pi_squared")
"""What verl is asked to compute besides log-probs."""


class TreeEngine(FSDPEngineWithLMHead):  # type: ignore[misc]
    """Actor and reference policy.

    Overridden seams (verl/workers/engine/fsdp/transformer_impl.py): `_build_module`, `_build_lora_module`,
    `prepare_model_inputs`, `prepare_model_outputs`, and `forward_backward_batch`, of which it is a copy that plans its
    own micro-batches.
    """

    def __init__(self, model_config: Any, engine_config: Any, *args: Any, **kwargs: Any) -> None:
        refuse_settings(model_config, engine_config)
        super().__init__(model_config, engine_config, *args, **kwargs)

    def _build_module(self) -> torch.nn.Module:
        module: Any = super()._build_module()
        register()
        if not hasattr(module, "set_attn_implementation"):
            raise refused("model.path", f"{type(module).__name__} is no model of transformers with known attention")
        # Before anything is wrapped, and for good: recomputation in the backward pass reads the configuration again.
        module.set_attn_implementation(NAME)
        refuse_model(module)
        kernel = kernel_of(get_device_name())
        logger.info("engine: tree uses %s", (kernel.__doc__ or "").partition("\n")[0])
        built: torch.nn.Module = module
        return built

    def _build_lora_module(self, module: torch.nn.Module) -> torch.nn.Module:
        adapted: torch.nn.Module = super()._build_lora_module(module)
        # A stored adapter brings its own settings.
        refuse_dropout(adapted)
        return adapted

    def forward_backward_batch(
        self, data: TensorDict, loss_function: Callable[..., Any] | None, forward_only: bool = False
    ) -> Any:
        """As verl's, but for the micro-batches, whose rows are chosen by what they share."""
        tu.assign_non_tensor(data, sp_size=self.ulysses_sequence_parallel_size)
        keep_output = tu.get_non_tensor_data(data=data, key="return_model_output", default=False)
        tokens = data["loss_mask"].sum().to(get_device_id())
        torch.distributed.all_reduce(tokens, group=self.get_data_parallel_group())
        tu.assign_non_tensor(data, batch_num_tokens=tokens.item(), dp_size=self.get_data_parallel_size())
        plan, metrics = self._plan(data)
        micro_batches = [tu.index_select_tensor_dict(data, rows) for rows in plan]
        outputs = []
        for number, micro_batch in enumerate(micro_batches):
            last = number == len(micro_batches) - 1
            synchronised = nullcontext() if forward_only else self._gradient_sync_context(is_last_micro_batch=last)
            gradients = torch.no_grad() if forward_only else nullcontext()
            with gradients, synchronised, torch.profiler.record_function(f"micro_batch{number}"):
                loss, output = self.forward_step(micro_batch, loss_function=loss_function, forward_only=forward_only)
                if not forward_only:
                    (loss if self.scaler is None else self.scaler.scale(loss)).backward()
                    if not keep_output:
                        output.pop("model_output", None)
            outputs.append(output)
        # verl restores the order of rows only after micro-batches by tokens; ours are always in another order.
        tu.assign_non_tensor(data, use_dynamic_bsz=True)
        found = postprocess_batch_func(output_lst=outputs, indices=plan, data=data)
        found["metrics"].update({name: [value] for name, value in metrics.items()})
        return found

    def _plan(self, data: TensorDict) -> tuple[Plan, dict[str, float]]:
        """The micro-batches of this rank, as many as every other rank has, and what they cost."""
        planner = Planner(rows_of(data["input_ids"]))
        if tu.get_non_tensor_data(data=data, key="use_dynamic_bsz", default=True):
            plan = planner.by_tokens(int(tu.get_non_tensor_data(data, "max_token_len_per_gpu", None)))
        else:
            plan = planner.by_rows(int(tu.get_non_tensor_data(data, "micro_batch_size_per_gpu", None)))
        number = torch.tensor([len(plan)], device=get_device_id())
        torch.distributed.all_reduce(number, op=torch.distributed.ReduceOp.MAX, group=self.get_data_parallel_group())
        plan = planner.divided(plan, int(number.item()))
        sharing = planner.sharing()
        forwarded = planner.forwarded(plan)
        return plan, {
            "sharing/unique_share": sharing.unique / sharing.tokens,
            "sharing/forwarded_share": forwarded / sharing.tokens,
            "sharing/visible_share": sharing.visible / sharing.pairs,
            "sharing/micro_batches": float(len(plan)),
        }

    def prepare_model_inputs(self, micro_batch: TensorDict) -> tuple[dict[str, Any], dict[str, Any]]:
        """The tree of the rows as one row of the model, and which of its logits are wanted."""
        refuse_batch(micro_batch)
        input_ids = micro_batch["input_ids"]
        packed = Packed.of(rows_of(input_ids))
        edges = Edges.of(packed, prompts_of(micro_batch))
        device = input_ids.device

        def put(array: Any) -> torch.Tensor:
            return torch.as_tensor(array, device=device)

        layout = Layout(packed, device)
        labels = put(packed.tokens[edges.children])
        temperature = micro_batch["temperature"]
        inputs = {
            "input_ids": put(packed.tokens).unsqueeze(0),
            "attention_mask": None,
            "position_ids": put(packed.positions).unsqueeze(0),
            "logits_to_keep": put(edges.parents),
            KEYWORD: layout,
        }
        outputs = {
            "temperature_is_one": float(temperature) == 1.0,
            "temperature_rmpad": torch.full(labels.shape, float(temperature), device=device),
            "input_ids_rmpad_rolled": labels,
            "pad_size": 0,
            "layout": layout,
            "places": put(edges.places),
        }
        return inputs, outputs

    def prepare_model_outputs(
        self, output: Any, output_args: Mapping[str, Any], micro_batch: TensorDict, logits_processor_func: Any
    ) -> dict[str, torch.Tensor]:
        """verl's outputs of each step of the tree, once for every row that takes the step, and 0 within prompts."""
        self._require_attention(output_args["layout"])
        labels = output_args["input_ids_rmpad_rolled"]
        offsets = torch.tensor([0, len(labels)], device=labels.device)
        asked = {name: tu.get_non_tensor_data(data=micro_batch, key=name, default=False) for name in FLAGS}
        steps = tu.get_tensordict(
            {"input_ids": torch.nested.nested_tensor_from_jagged(labels, offsets)},
            {"use_remove_padding": True, "use_fused_kernels": False, **asked},
        )
        found = super().prepare_model_outputs(output, output_args, steps, logits_processor_func)
        rows = micro_batch["input_ids"].offsets()
        return {name: _of_rows(values.values(), output_args["places"], rows) for name, values in found.items()}

    def _require_attention(self, layout: Layout) -> None:
        """Refuse a model some of whose layers the tree has not reached."""
        layers = int(self.model_config.hf_config.get_text_config().num_hidden_layers)
        if layout.calls != layers:
            raise RecipeError(
                f"engine: tree: {layout.calls} of the {layers} layers of the model attend as the tree wants; take "
                "engine: stock for this model."
            )


class TreeCritic(TreeEngine, FSDPEngineWithValueHead):  # type: ignore[misc]
    """Critic: a value belongs to a token and what stands before it, so every token of the tree has one."""

    def prepare_model_inputs(self, micro_batch: TensorDict) -> tuple[dict[str, Any], dict[str, Any]]:
        """The tree of the rows as one row of the model; all its values are wanted."""
        inputs, outputs = super().prepare_model_inputs(micro_batch)
        del inputs["logits_to_keep"]
        return inputs, outputs

    def prepare_model_outputs(
        self, output: Any, output_args: Mapping[str, Any], micro_batch: TensorDict, logits_processor_func: Any
    ) -> dict[str, torch.Tensor]:
        """The value of each token, once for every row that has it, those of prompts included as verl has them."""
        layout: Layout = output_args["layout"]
        self._require_attention(layout)
        values = output.logits[0].squeeze(-1)
        places = torch.as_tensor(np.concatenate(layout.packed.paths), device=values.device)
        return {"values": _of_rows(values, places, micro_batch["input_ids"].offsets())}


def _of_rows(values: torch.Tensor, places: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """Values of steps as rows, one for each token; see `Edges.places`."""
    flat = torch.cat([values, values.new_zeros(1)])[places]
    return torch.nested.nested_tensor_from_jagged(flat, offsets)


def rows_of(input_ids: Any) -> list[Row]:
    """The rows of a nested tensor of token ids."""
    values, offsets = input_ids.values().cpu().numpy(), input_ids.offsets().cpu().numpy()
    return np.split(values, offsets[1:-1])


def prompts_of(micro_batch: TensorDict) -> list[int]:
    """Tokens at the beginning of each row that nobody reads log-probs of: those of its prompt, where it has one."""
    prompts: Any = micro_batch.get("prompts", None)
    if prompts is None or not prompts.is_nested:
        return [1] * len(micro_batch)
    lengths: list[int] = prompts.offsets().diff().tolist()
    return lengths


class UnsupportedEngine(FSDPEngineWithLMHead):  # type: ignore[misc]
    """Says in a sentence why a strategy has no tree engine, instead of training every row for itself unasked."""

    def __init__(self, model_config: Any, engine_config: Any, *args: Any, **kwargs: Any) -> None:
        raise RecipeError(
            f"engine: tree: the strategy {engine_config.strategy!r} has no tree engine; set "
            "actor_rollout_ref.actor.strategy=fsdp2, or take engine: stock."
        )


@cache
def register_engines(vendor: str) -> None:
    """Put the engines into verl's registry under a vendor's name, for every device. Idempotent."""
    EngineRegistry.register("language_model", "fsdp2", device=["cuda", "npu"], vendor=vendor)(TreeEngine)
    EngineRegistry.register("value_model", "fsdp2", device=["cuda", "npu"], vendor=vendor)(TreeCritic)
    others = ["fsdp", "fsdp_turbo", "megatron", "veomni", "torchtitan", "automodel"]
    devices = ["cpu", "cuda", "npu"]
    EngineRegistry.register("language_model", others, device=devices, vendor=vendor)(UnsupportedEngine)
    from verl_hier.runtime_cpu import is_active

    if is_active():
        from verl_hier.runtime_cpu.fsdp import CpuFsdp2EngineWithLMHead, CpuFsdp2EngineWithValueHead

        class CpuTreeEngine(TreeEngine, CpuFsdp2EngineWithLMHead):
            """The same without an accelerator."""

        EngineRegistry.register("language_model", "fsdp2", device="cpu", vendor=vendor)(CpuTreeEngine)

        class CpuTreeCritic(TreeCritic, CpuFsdp2EngineWithValueHead):
            """The same without an accelerator."""

        EngineRegistry.register("value_model", "fsdp2", device="cpu", vendor=vendor)(CpuTreeCritic)
