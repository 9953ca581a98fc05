"""All findings about a model by its folder or name."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from verl_hier.chat.examined import architecture, tokens
from verl_hier.chat.examined.finding import Finding
from verl_hier.chat.renderer import ChatRenderer
from verl_hier.chat.template import ChatTemplate
from verl_hier.chat.tokenizer import configs, load_tokenizer
from verl_hier.errors import RecipeError, first_line
from verl_hier.host.manager import PluginHost
from verl_hier.host.specs import RolloutServerSpec


def examine(
    model: str | os.PathLike[str], host: PluginHost, trained_bytes: int = 16, copy_bytes: int = 4
) -> Iterator[Finding]:
    """What is found about a model; no weights are read.

    Args:
        model: folder, or name on the hub.
        host: the plugins whose rollout servers and engines are asked.
        trained_bytes, copy_bytes: see `architecture.memory`.

    Raises:
        RecipeError: when there is no tokenizer.
    """
    tokenizer = load_tokenizer(model, "MODEL")
    config, generation = configs(model)
    yield from of_tokenizer(tokenizer, config, generation, Path(model))
    if config is None:
        yield Finding(
            "architecture",
            "note",
            "there is no config.json that transformers reads; put the model's beside its tokenizer.",
        )
        return
    try:
        skeleton = architecture.skeleton(config)
    except Exception as error:  # transformers raises many unrelated types
        yield Finding(
            "architecture",
            "fails",
            f"transformers makes no causal language model of this config ({first_line(error)}); choose another model, "
            "or a version of transformers that knows it.",
        )
        return
    yield from architecture.served(skeleton, host.specs("rollout_server").values())
    yield from architecture.trained(skeleton, host.specs("engine").values())
    yield from architecture.memory(sum(each.numel() for each in skeleton.parameters()), trained_bytes, copy_bytes)


def of_tokenizer(
    tokenizer: Any, config: Any, generation: Any, folder: Path | None = None, options: dict[str, Any] | None = None
) -> Iterator[Finding]:
    """The findings about a tokenizer and its template.

    Args:
        tokenizer: of the model.
        config, generation: the model's config and generation config, None where it has none.
        folder: where its files are.
        options: further arguments of the template.
    """
    yield from tokens.round_trip(tokenizer, folder)
    if not tokenizer.chat_template:
        yield Finding(
            "chat template",
            "note",
            "the tokenizer has no chat template; put chat_template.jinja beside it, or set "
            "hier.rollout.template: plain.",
        )
        return
    template = ChatTemplate(tokenizer, options)
    roles = list(tokens.roles(template))
    yield from roles
    if any(finding.verdict == "fails" for finding in roles):
        return
    yield from tokens.ends(tokenizer, template, generation, config)
    family = None if config is None else str(config.model_type)
    try:
        renderer = ChatRenderer(tokenizer, family, dict(options or {}), (generation, config))
    except Exception as error:  # verl's builders raise what the template raises
        yield Finding("four turns", "fails", f"verl cannot continue this template ({first_line(error)}); change it.")
        return
    yield from tokens.conversation(tokenizer, renderer)
    yield from tokens.tool_calls(tokenizer, template)


def refuse_tokenizer(folder: Path, tokenizer_folder: Path, line: str, options: dict[str, Any] | None = None) -> None:
    """Refuse a tokenizer or template with which no rollout works.

    Args:
        folder, tokenizer_folder: of the model and of its tokenizer.
        line: of the recipe, for errors.
        options: further arguments of the template.

    Raises:
        RecipeError: with the sentence of the first finding that fails.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tokenizer = load_tokenizer(tokenizer_folder, line)
        config, generation = configs(folder)
        for finding in of_tokenizer(tokenizer, config, generation, tokenizer_folder, options):
            if finding.verdict == "fails":
                raise RecipeError(f"{line}: {finding.about} of {str(folder)!r}: {finding.sentence}")


def refuse_server(folder: Path, server: RolloutServerSpec, line: str) -> None:
    """Refuse an architecture that a rollout server cannot have; a config that transformers does not read passes.

    Args:
        folder: of the model.
        server: the server.
        line: of the recipe, for errors.

    Raises:
        RecipeError: with what the server would say after the weights were loaded.
    """
    if server.refuses is None:
        return
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

    config, _ = configs(folder)
    if config is None or type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        return
    why = server.refuses(config, MODEL_FOR_CAUSAL_LM_MAPPING[type(config)])
    if why:
        raise RecipeError(f"{line}: {why} {architecture.ON_GPUS}")
