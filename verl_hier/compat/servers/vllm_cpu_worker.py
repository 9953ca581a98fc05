"""verl's vLLM worker extension for a build for the CPU; a recipe names it, see recipes/hier/server/vllm_cpu.yaml.

vLLM's CPU backend packs the weights of linear layers into the layout of its kernels and drops the originals
(vllm/model_executor/layers/utils.py). verl then has nothing to load new weights into: the receiver fails and the
sender waits for it without end. The extension keeps the weights as they are and multiplies by them.

verl sends weights in buckets, and names a weight that two modules share twice. vLLM refuses its second name in a bucket
that does not hold the first (`_check_skipped_aliases` of vllm/model_executor/models/utils.py), so that is left out.
"""

from __future__ import annotations

from typing import Any

import torch
from verl.workers.rollout.vllm_rollout.utils import vLLMColocateWorkerExtension
from vllm.model_executor.layers import utils as layers


def _plain(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return torch.nn.functional.linear(x, weight, bias)


def keep_plain_weights() -> None:
    """Replace vLLM's choice of a packed kernel in this process; layers that are no matrices keep theirs."""
    packed = layers.dispatch_cpu_unquantized_gemm

    def dispatch(layer: Any, remove_weight: bool) -> None:
        if layer.weight.is_meta or layer.weight.ndim != 2:
            packed(layer, remove_weight)
        else:
            layer.cpu_linear = _plain

    layers.dispatch_cpu_unquantized_gemm = dispatch


def second_names(model: torch.nn.Module) -> set[str]:
    """The further names of parameters that have several."""
    first: dict[int, str] = {}
    named = model.named_parameters(remove_duplicate=False)
    return {name for name, parameter in named if first.setdefault(id(parameter), name) != name}


class WorkerExtension(vLLMColocateWorkerExtension):
    """Takes effect before the model is built, because vLLM's worker is made of this class."""

    def __new__(cls, **kwargs: Any) -> Any:
        keep_plain_weights()
        return super().__new__(cls, **kwargs)

    def _update_weights(self, weights: list[tuple[str, torch.Tensor]], **how: Any) -> None:
        shared = second_names(self.model_runner.model)
        super()._update_weights([(name, weight) for name, weight in weights if name not in shared], **how)
