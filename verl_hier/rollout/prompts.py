"""Prompt templates of workers: `{name}` fields filled from the task, the environment and the worker."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from string import Formatter

from verl_hier.environments.base import StepResult
from verl_hier.errors import RecipeError
from verl_hier.graph.nodes import Node
from verl_hier.rollout.context import Context
from verl_hier.rollout.episode_view import EpisodeView
from verl_hier.rollout.turn_view import Turn


def fields(episode: EpisodeView, step: StepResult, first: StepResult, /, **more: str) -> dict[str, str]:
    """What every template may use.

    Args:
        episode: the episode.
        step: the last answer of the environment: {observation}, {admissible}.
        first: the answer to the reset; each entry of its `info` is a field of that name.
        more: what the worker adds; each is cut to `episode.longest_quote` characters, because what one agent writes
            would otherwise swell the prompts of all others.
    """
    known = {name: str(value) for name, value in first.info.items()}
    known |= {
        "instruction": episode.instruction,
        "observation": step.text,
        "admissible": "; ".join(step.admissible),
    }
    return known | {name: value[: episode.longest_quote] for name, value in more.items()}


def fill(template: str, known: dict[str, str], option: str) -> str:
    """The template with its fields filled in.

    Args:
        template: from the recipe.
        known: see `fields`.
        option: name of the template, for the error.

    Raises:
        RecipeError: for a field that is not known.
    """
    try:
        return template.format(**known)
    except (KeyError, IndexError, ValueError) as error:
        raise RecipeError(
            f"hier.worker.{option}: the template {template!r} cannot be filled ({error}); "
            f"fields of this environment and worker: {', '.join(sorted(known))}."
        ) from error


def source_nodes(template: str, turns: Mapping[str, Iterable[Turn]]) -> list[Node]:
    """Nodes of the turns whose text a filled template contains, for `Context.observe(…, sources=…)`.

    Args:
        template: from the recipe.
        turns: field name to the turns whose text fills it.
    """
    return [turn.node for name, filling in turns.items() if name in _names(template) for turn in filling]


def observe(
    context: Context,
    options: object,
    name: str,
    known: dict[str, str],
    turns: Mapping[str, Iterable[Turn]] | None = None,
    prefix: str = "",
) -> None:
    """Add the filled template `options.<name>` to a context, as a message whose sources are known.

    Args:
        context: gains the message.
        options: the worker's options.
        name: field of the template.
        known: see `fields`.
        turns: field name to the turns whose text fills it; others are filled by the task and the environment.
        prefix: where `options` stands below `hier.worker`, for errors.

    Raises:
        RecipeError: for a field that is not known.
    """
    template = getattr(options, name)
    context.observe(fill(template, known, prefix + name), sources=source_nodes(template, turns or {}))


def check_action_template(name: str, template: str | None) -> None:
    """Raise a ValueError when the template of an action uses another field than {content}."""
    try:
        (template or "").format(content="")
    except (KeyError, IndexError, ValueError) as error:
        raise ValueError(f"{name} may use {{content}} only, got {template!r} ({error})") from error


def content_of(template: str | None, action: str) -> str | None:
    """The {content} with which the template of an action makes `action`; None when no content does, or no template."""
    if template is None:
        return None
    before, _, after = template.partition("{content}")
    start, end = before.format(), after.format(content="")
    fits = action.startswith(start) and action.endswith(end) and len(action) >= len(start) + len(end)
    return action[len(start) : len(action) - len(end)].strip() if fits else None


@lru_cache(maxsize=1024)
def _names(template: str) -> frozenset[str]:
    """Fields that a template uses."""
    return frozenset(name.split(".")[0].split("[")[0] for _, name, _, _ in Formatter().parse(template) if name)
