"""A tokenizer and its renderer by the name of a model, for tools that read texts outside of a run."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Literal

from verl_hier.errors import RecipeError
from verl_hier.rollout import Renderer
from verl_hier.rollout.plain_renderer import PlainRenderer


def load_tokenizer(model: str | os.PathLike[str]) -> Any:
    """The Hugging Face tokenizer of a folder or a name.

    Raises:
        RecipeError: when there is none.
    """
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(str(model))
    except Exception as error:  # transformers and the hub raise many unrelated types
        reason = str(error).strip().splitlines()[0].rstrip(".")
        raise RecipeError(
            f"--model {model}: there is no tokenizer ({reason}); give the folder of a model or its Hugging Face name; "
            "`verl-hier tiny RECIPE` makes a small one."
        ) from error


def load_renderer(
    model: str | os.PathLike[str],
    tokenizer: Any,
    template: Literal["chat", "plain"],
    options: Mapping[str, Any] | None = None,
) -> Renderer:
    """The renderer that a rollout with this model has.

    Args:
        model: folder or name; its config says which model family the chat template belongs to.
        tokenizer: of `load_tokenizer`.
        template: the recipe's `hier.rollout.template`.
        options: the recipe's `data.apply_chat_template_kwargs`.

    Raises:
        RecipeError: for a tokenizer without a chat template.
    """
    if template == "plain":
        return PlainRenderer(tokenizer)
    if not tokenizer.chat_template:
        raise RecipeError(f"--model {model}: its tokenizer has no chat template; use --template plain.")
    from verl_hier.compat.chat import ChatRenderer

    return ChatRenderer(tokenizer, _model_type(model), dict(options or {}))


def _model_type(model: str | os.PathLike[str]) -> str | None:
    """None for a tokenizer on its own: verl then knows no family and takes its general rules."""
    from transformers import AutoConfig

    try:
        return str(AutoConfig.from_pretrained(str(model)).model_type)
    except (OSError, ValueError):
        return None
