"""A recipe's `RolloutRunner` from a composed verl configuration, for agent-loop workers and for tools."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from omegaconf import OmegaConf

from verl_hier.chat.tokenizer import load_renderer, load_tokenizer
from verl_hier.chat.tools import VerlTools
from verl_hier.recipe.composed import ComposedRecipe
from verl_hier.recipe.runner import RolloutRunner

_LINE = "actor_rollout_ref.model.path:"


def runner_of(
    config: Any, tokenizer: Any = None, model_type: str | None = None, tools: Sequence[Any] | None = None
) -> RolloutRunner:
    """The rollout runner of a recipe.

    Args:
        config: the whole composed verl configuration.
        tokenizer: of the recipe's model; loaded from `actor_rollout_ref.model` when omitted.
        model_type: `model_type` of the model's Hugging Face config; loaded when omitted.
        tools: verl's tools, where they are loaded already.

    Raises:
        RecipeError: when the model has no tokenizer, or none with a chat template where the recipe needs one.
    """
    model, recipe = config.actor_rollout_ref.model, ComposedRecipe.of(config)
    if tokenizer is None:
        trust = bool(model.get("trust_remote_code", False))
        tokenizer = load_tokenizer(model.get("tokenizer_path") or model.path, _LINE, trust)
    options: Any = OmegaConf.to_container(recipe.config.data.get("apply_chat_template_kwargs") or OmegaConf.create({}))
    renderer = load_renderer(model.path, tokenizer, recipe.hier.rollout.template, options, _LINE, model_type)
    return RolloutRunner(recipe, renderer, len(tokenizer), tools=partial(VerlTools, config, tokenizer, tools))
