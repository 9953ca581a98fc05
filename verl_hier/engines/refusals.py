"""What the tree engine does not do exactly, each refused in one sentence that names the setting."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDict
from verl.utils import tensordict_utils as tu

from verl_hier.engines.attention import NAME
from verl_hier.errors import RecipeError


def refused(setting: str, why: str) -> RecipeError:
    """The refusal of one setting."""
    return RecipeError(f"{setting}: {why}; change it, or take engine: stock.")


def refuse_settings(model_config: Any, engine_config: Any) -> None:
    """Refuse settings of model and engine under which the tree would not train what the rows say.

    Raises:
        RecipeError: naming the setting.
    """
    if engine_config.ulysses_sequence_parallel_size > 1:
        raise refused("ulysses_sequence_parallel_size", "engine: tree does not divide a tree among devices")
    if model_config.use_fused_kernels:
        raise refused("model.use_fused_kernels", "fused kernels compute every log-prob, and engine: tree only some")
    if engine_config.pad_to_length:
        raise refused("fsdp_config.pad_to_length", "engine: tree packs trees without padding")
    mtp = getattr(model_config, "mtp", None)
    if mtp is not None and mtp.enable:
        raise refused("model.mtp.enable", "engine: tree predicts one next token")


def refuse_model(module: Any) -> None:
    """Refuse models whose layers are not exact on a tree.

    Args:
        module: the model as transformers built it, with the tree's attention.

    Raises:
        RecipeError: naming the setting of the model's configuration.
    """
    refuse_config(module.config)
    refuse_dropout(module)
    config = module.config.get_text_config()
    if getattr(config, "attention_dropout", 0.0):
        raise _by_chance("attention_dropout")
    if config._attn_implementation != NAME:
        raise refused("model.path", f"{type(module).__name__} has an attention of its own, which no tree reaches")


def refuse_config(whole: Any) -> None:
    """Refuse architectures whose layers are not exact on a tree, as far as the model's config says.

    Args:
        whole: the config as transformers read it.

    Raises:
        RecipeError: naming the setting of the config.
    """
    config = whole.get_text_config()
    if getattr(whole, "vision_config", None) is not None or getattr(whole, "audio_config", None) is not None:
        raise refused("model.path", "engine: tree knows no positions of images, videos and sounds")
    others = set(getattr(config, "layer_types", None) or ()) - {"full_attention"}
    if others:
        kinds = ", ".join(sorted(others))
        raise refused("layer_types", f"the model has layers of {kinds}, and engine: tree is exact on full attention")
    if getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True):
        raise refused("sliding_window", "the model attends to a window, and engine: tree to whole rows")
    if getattr(config, "output_router_logits", False):
        raise refused("output_router_logits", "the balance of experts is counted over rows, and engine: tree has none")


def refuse_dropout(module: torch.nn.Module) -> None:
    """Refuse layers that drop values, those of adapters included.

    Raises:
        RecipeError: naming the layer.
    """
    for name, part in module.named_modules():
        if isinstance(part, torch.nn.Dropout) and part.p > 0:
            raise _by_chance(name)


def _by_chance(setting: str) -> RecipeError:
    return refused(setting, "rows drop different values by chance, and engine: tree computes what they share once")


def refuse_batch(micro_batch: TensorDict) -> None:
    """Refuse what a request asks for besides log-probs of plain rows.

    Raises:
        RecipeError: naming the setting.
    """
    if isinstance(micro_batch["temperature"], torch.Tensor):
        raise refused("temperature", "each row has its own, and engine: tree scales the logits of a token once")
    if tu.get_non_tensor_data(data=micro_batch, key="distillation_use_topk", default=False):
        raise refused("distillation", "engine: tree has no logits of the teacher's best tokens")
    positions, input_ids = micro_batch["position_ids"], micro_batch["input_ids"]
    if positions.dim() == 3 or any(tu.get(micro_batch, "multi_modal_inputs") or ()):
        raise refused("data.image_key", "engine: tree knows no positions of images, videos and sounds")
    offsets, size = input_ids.offsets(), len(input_ids.values())
    begins = offsets[:-1].repeat_interleave(offsets.diff(), output_size=size)
    plain = torch.arange(size, device=offsets.device) - begins
    if not torch.equal(positions.values(), plain.to(positions.values().dtype)):
        raise refused("position_ids", "rows do not count their tokens from 0, which engine: tree takes for granted")
