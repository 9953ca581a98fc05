"""Getting an expert out of an environment, or a sentence that says why there is none."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from verl_hier.environments.base import Environment, StepResult
from verl_hier.environments.expert import Expert, OffersExpert
from verl_hier.errors import RecipeError


def start(
    world: Environment,
    task: Mapping[str, Any],
    rng: random.Random,
    skip_stage: float = 0.0,
    remember: bool = True,
    seed: int = 0,
) -> tuple[Expert, StepResult]:
    """Reset a world and get its expert for the task."""
    step = world.reset(task, seed)
    return expert_of(world, rng, skip_stage, remember), step


def expert_of(world: Environment, rng: random.Random, skip_stage: float = 0.0, remember: bool = True) -> Expert:
    """The expert for the episode that a world is in."""
    if not isinstance(world, OffersExpert):
        raise RecipeError(
            f"hier.environment.name: {type(world).__name__} offers no expert, so there can be no demonstrations; give "
            "it a method `expert(rng, skip_stage, remember)` as `verl_hier.environments.expert` describes."
        )
    return world.expert(rng, skip_stage, remember)
