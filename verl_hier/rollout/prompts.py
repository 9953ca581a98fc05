"""Prompt templates of workers: `{name}` fields filled from the task, the world and what the worker adds."""

from __future__ import annotations

from verl_hier.environments.base import Step
from verl_hier.errors import RecipeError
from verl_hier.rollout.stage import Stage


def fields(stage: Stage, step: Step, first: Step, /, **more: str) -> dict[str, str]:
    """What every template may use.

    Args:
        stage: the episode.
        step: the latest answer of the world: {observation}, {admissible}.
        first: the answer to the reset; each entry of its `info` is a field of that name.
        more: what the worker adds.
    """
    known = {name: str(value) for name, value in first.info.items()}
    known |= {
        "instruction": stage.instruction,
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
