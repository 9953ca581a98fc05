"""A recipe's `Driver` from a composed verl config, in an agent-loop worker or on its own."""

from __future__ import annotations

from typing import Any

from omegaconf import OmegaConf

from verl_hier.compat.chat import ChatRenderer
from verl_hier.recipe.composed import ComposedRecipe
from verl_hier.recipe.runner import RolloutRunner
from verl_hier.rollout import Renderer
from verl_hier.rollout.plain_renderer import PlainRenderer


def driver_of(config: Any, tokenizer: Any = None, model_type: str | None = None) -> RolloutRunner:
    """The driver of a recipe.

    Args:
        config: the whole composed verl config.
        tokenizer: of the recipe's model; loaded from `actor_rollout_ref.model` when omitted.
        model_type: `model_type` of the model's Hugging Face config; loaded when the tokenizer is.
    """
    if tokenizer is None:
        tokenizer, model_type = _load(config.actor_rollout_ref.model)
    recipe = ComposedRecipe.of(config)
    return RolloutRunner(recipe, _renderer(recipe, tokenizer, model_type), len(tokenizer))


def _renderer(recipe: ComposedRecipe, tokenizer: Any, model_type: str | None) -> Renderer:
    if recipe.hier.rollout.template == "plain":
        return PlainRenderer(tokenizer)
    options = OmegaConf.to_container(recipe.config.data.get("apply_chat_template_kwargs") or OmegaConf.create({}))
    return ChatRenderer(tokenizer, model_type, dict(options))  # type: ignore[arg-type]


def _load(model: Any) -> tuple[Any, str | None]:
    from transformers import AutoConfig, AutoTokenizer

    trust = bool(model.get("trust_remote_code", False))
    path = str(model.get("tokenizer_path") or model.path)
    tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=trust)
    return tokenizer, AutoConfig.from_pretrained(str(model.path), trust_remote_code=trust).model_type
