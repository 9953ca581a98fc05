"""Prompt templates of workers: `{name}` fields filled from the task, the world and what the worker adds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from string import Formatter

from verl_hier.environments.base import StepResult
from verl_hier.errors import RecipeError
from verl_hier.rollout.episode_view import EpisodeView, Turn


def fields(episode: EpisodeView, step: StepResult, first: StepResult, /, **more: str) -> dict[str, str]:
    """What every template may use.

    Args:
        stage: the episode.
        step: the latest answer of the world: {observation}, {admissible}.
        first: the answer to the reset; each entry of its `info` is a field of that name.
        more: what the worker adds.
    """
    known = {name: str(value) for name, value in first.info.items()}
    known |= {
        "instruction": episode.instruction,
        "observation": step.text,
        "admissible": "; ".join(step.admissible),
    }
    return known | more


def fill(template: str, known: dict[str, str], option: str) -> str:
    """The template with its fields filled.

    Args:
        template: from the recipe.
        known: see `fields`.
        option: name of the template, for the error.

    Raises:
        RecipeError: for a field that nobody fills.
    """
    try:
        return template.format(**known)
    except (KeyError, IndexError, ValueError) as error:
        raise RecipeError(
            f"hier.worker.{option}: the template {template!r} cannot be filled ({error}); "
            f"fields of this environment and worker: {', '.join(sorted(known))}."
        ) from error


def source_turns(template: str, words: Mapping[str, Iterable[Turn]]) -> list[Turn]:
    """Turns whose words stand in a filled template, for `Context.observe(…, sources=…)`.

    Args:
        template: from the recipe; `fill` has filled it.
        words: field name to the turns whose words filled it.
    """
    return [turn for name, turns in words.items() if name in _names(template) for turn in turns]


@lru_cache(maxsize=1024)
def _names(template: str) -> frozenset[str]:
    """Fields that a template uses."""
    return frozenset(name.split(".")[0].split("[")[0] for _, name, _, _ in Formatter().parse(template) if name)
