"""How turns that are trained are sampled: at what else than the log-probs of the trainer say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from verl_hier.errors import RecipeError
from verl_hier.recipe.checks.roles import MOST_STEPS, worker_levels
from verl_hier.recipe.checks.rule import rule, value
from verl_hier.recipe.composed import ComposedRecipe

ROLLOUT = "actor_rollout_ref.rollout."
CUTS = {"top_p": 1.0, "top_k": -1}
"""Lines that leave tokens out of a distribution, and their values that leave out none."""


@rule
def check_temperatures(recipe: ComposedRecipe) -> None:
    """Refuse a role that learns and is sampled at another temperature than the recipe's, at which the trainer computes
    its log-probs."""
    usual = value(recipe.config, ROLLOUT + "temperature")
    for role, own in _learning(recipe):
        temperature = getattr(own, "temperature", None)
        if temperature is not None and temperature != usual:
            raise RecipeError(
                f"hier.worker.roles.{role}.temperature: the role learns, and the trainer computes log-probs at "
                f"{ROLLOUT}temperature = {usual:g}, so that its ratios would be wrong at {temperature:g}; remove it, "
                "or take the role out of hier.schedule."
            )


def notes(recipe: ComposedRecipe) -> Iterator[str]:
    """Lines by which tokens are left out of the distribution that trained turns are sampled from."""
    why = (
        "trained turns are sampled from fewer tokens than the log-probs of the trainer are of, so that the ratio of "
        "both is off from the first step; {usual} leaves none out, and algorithm.rollout_correction corrects it"
    )
    for name, usual in CUTS.items():
        given = value(recipe.config, ROLLOUT + name)
        if given not in (None, usual, 0 if name == "top_k" else usual):
            yield f"{ROLLOUT}{name}: with {given:g} {why.format(usual=usual)}."
        for role, own in _learning(recipe):
            cut = getattr(own, name, None)
            if cut is not None and cut not in (usual, given):
                yield f"hier.worker.roles.{role}.{name}: with {cut:g} {why.format(usual=usual)}."


def _learning(recipe: ComposedRecipe) -> Iterator[tuple[str, Any]]:
    """(role, its options) of every role of the worker that has options of its own and learns in some step."""
    worker, schedule = recipe.parts.worker, recipe.parts.schedule
    roles = getattr(worker.options, "roles", None)
    if not isinstance(roles, Mapping):
        return
    levels, made = worker_levels(worker), schedule.spec.factory(schedule.options)
    phases = [made.phase(step) for step in range(1, MOST_STEPS + 1)]
    for role, own in roles.items():
        if role in levels and any(phase.learns(role, levels[role]) for phase in phases):
            yield role, own
