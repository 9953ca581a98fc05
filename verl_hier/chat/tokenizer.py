"""A tokenizer and its renderer by the name of a model, for tools that read texts outside of a run."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Literal

from verl_hier.errors import RecipeError, first_line
from verl_hier.rollout import Renderer
from verl_hier.rollout.plain_renderer import PlainRenderer
from verl_hier.verl_facts.hub import require_on_hub


def load_tokenizer(model: str | os.PathLike[str], option: str = "--model", trust_remote_code: bool = False) -> Any:
    """The Hugging Face tokenizer of a folder or a name.

    Args:
        model: folder or name.
        option: where the user has named it, for errors.
        trust_remote_code: whether code that comes with the model may run.

    Raises:
        RecipeError: when there is none.
    """
    from transformers import AutoTokenizer

    require_on_hub(model, option)
    try:
        return AutoTokenizer.from_pretrained(str(model), trust_remote_code=trust_remote_code)
    except Exception as error:  # transformers and the hub raise many unrelated types
        raise RecipeError(
            f"{option} {model}: there is no tokenizer ({first_line(error)}); give the folder of a model or its Hugging "
            "Face name; `verl-hier tiny RECIPE` makes a small one."
        ) from error


def load_renderer(
    model: str | os.PathLike[str],
    tokenizer: Any,
    template: Literal["chat", "plain"],
    options: Mapping[str, Any] | None = None,
    option: str = "--model",
    model_type: str | None = None,
) -> Renderer:
    """The renderer that a rollout with this model has.

    Args:
        model: folder or name; its config says which model family the chat template belongs to.
        tokenizer: of `load_tokenizer`.
        template: the recipe's `hier.rollout.template`.
        options: the recipe's `data.apply_chat_template_kwargs`.
        option: see `load_tokenizer`.
        model_type: `model_type` of the model's config; read from `model` when omitted.

    Raises:
        RecipeError: for a tokenizer without a chat template.
    """
    if template == "plain":
        return PlainRenderer(tokenizer)
    if not tokenizer.chat_template:
        plain = "--template plain" if option == "--model" else "hier.rollout.template: plain"
        raise RecipeError(f"{option} {model}: its tokenizer has no chat template; use {plain}.")
    from verl_hier.chat.renderer import ChatRenderer

    config, generation = configs(model)
    # Without a config verl knows no family and takes its general rules.
    family = model_type or (None if config is None else str(config.model_type))
    return ChatRenderer(tokenizer, family, dict(options or {}), (generation, config))


def configs(model: str | os.PathLike[str]) -> tuple[Any, Any]:
    """The config and the generation config of a model; None for what it does not have, as a tokenizer on its own."""
    from transformers import AutoConfig, GenerationConfig

    found: list[Any] = []
    for kind in (AutoConfig, GenerationConfig):
        try:
            found.append(kind.from_pretrained(str(model)))
        except (OSError, ValueError):
            found.append(None)
    return found[0], found[1]
