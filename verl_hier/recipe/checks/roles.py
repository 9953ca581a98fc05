"""Roles and levels that the worker does not have, so that some step would train nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from verl_hier.errors import PluginError, RecipeError, did_you_mean, raised
from verl_hier.host.part import Part
from verl_hier.host.specs import EstimatorSpec
from verl_hier.recipe.checks.rule import rule, value
from verl_hier.recipe.composed import ComposedRecipe
from verl_hier.recipe.parts import Parts
from verl_hier.recipe.rewards import check_rewards
from verl_hier.training.schedule import Phase

MOST_STEPS = 1000
"""Steps of a long run whose phases are looked at; schedules repeat themselves long before."""


@rule
def check_roles(recipe: ComposedRecipe) -> None:
    """Refuse a recipe in which some step would train nothing: levels and roles that no agent of the worker has."""
    parts = recipe.parts
    levels = worker_levels(parts.worker)
    check_named(parts, levels)
    steps = value(recipe.config, "trainer.total_training_steps")
    check_phases(parts, levels, min(int(steps or MOST_STEPS), MOST_STEPS))


@rule
def check_judges(recipe: ComposedRecipe) -> None:
    """Refuse training a judge on its own verdicts, unless the worker is told to."""
    parts = recipe.parts
    worker, estimator, schedule = parts.worker, parts.estimator.spec, parts.schedule
    if worker.spec.judges is None or estimator.own_rewards:
        return
    levels, made = worker_levels(worker), schedule.spec.factory(schedule.options)
    phases = [made.phase(step) for step in range(1, MOST_STEPS + 1)]
    for role in worker.spec.judges(worker.options):
        if any(phase.learns(role, levels[role]) for phase in phases):
            known = recipe.host.specs("estimator").items()
            others = sorted(name for name, spec in known if isinstance(spec, EstimatorSpec) and spec.own_rewards)
            raise RecipeError(
                f"hier.schedule.roles: the role {role!r} learns, and estimator {estimator.name!r} credits it by what "
                "its own verdicts give; name the other roles here, take an estimator that goes by the own rewards of a "
                f"role ({', '.join(others)}), or say `judge_learns: true` in hier.worker."
            )


@rule
def check_rewarded_roles(recipe: ComposedRecipe) -> None:
    """Refuse rewards for roles that no agent of the worker has."""
    check_rewards(recipe.rewards, recipe.parts.worker)


def require_role(worker: Part, role: str, line: str) -> None:
    """Refuse a role that the worker does not have.

    Raises:
        RecipeError: naming the recipe line.
    """
    known = worker_levels(worker)
    if role not in known:
        raise RecipeError(
            f"{line}: the worker {worker.spec.name!r} has no role {role!r}{did_you_mean(role, known)}; it has "
            f"{', '.join(known)}."
        )


def worker_levels(worker: Part) -> dict[str, int]:
    """Role to level of the worker with its options.

    Raises:
        PluginError: when it declares none, or a level that is no number from 0 on.
    """
    levels: dict[str, int] = worker.spec.levels(worker.options)
    if not levels:
        raise PluginError(
            f"worker {worker.spec.name!r} declares no roles, so that none of its agents could take a turn; list them "
            "with their levels in the `roles` of its WorkerSpec."
        )
    for role, level in levels.items():
        if type(level) is not int or level < 0:
            raise PluginError(
                f"worker {worker.spec.name!r} puts the role {role!r} on level {level!r}; levels in the `roles` of a "
                "WorkerSpec are whole numbers, and 0 is the highest."
            )
    return levels


def check_named(parts: Parts, levels: Mapping[str, int]) -> None:
    """Refuse roles and levels that the recipe names and no agent of the worker has."""
    worker, schedule = parts.worker.spec.name, parts.schedule
    # A schedule that goes by roles does not look at its levels.
    roles = tuple(getattr(schedule.options, "roles", None) or ())
    for role in roles:
        if role not in levels:
            raise RecipeError(
                f"hier.schedule.roles: worker {worker!r} has no role {role!r}{did_you_mean(role, levels)}; "
                f"it has {', '.join(levels)}."
            )
    for part in (parts.estimator, schedule):
        for role in part.spec.named_roles(part.options) if part.spec.named_roles is not None else ():
            if role not in levels:
                raise RecipeError(
                    f"hier.{part.spec.kind}: {part.spec.name!r} is about the role {role!r}, and worker {worker!r} has "
                    f"none{did_you_mean(role, levels)}; it has {', '.join(levels)}."
                )
    asked = {
        "hier.estimator.name": (parts.estimator.spec, parts.estimator.spec.levels),
        "hier.schedule.levels": (schedule.spec, () if roles else getattr(schedule.options, "levels", None) or ()),
    }
    have = set(levels.values())
    for line, (spec, wanted) in asked.items():
        if set(wanted) - have:
            raise RecipeError(
                f"{line}: {spec.kind} {spec.name!r} works on {_listed(wanted)}, but worker {worker!r} has "
                f"only {_listed(sorted(have))}; choose another worker in hier.worker.name or another {spec.kind}."
            )


def check_phases(parts: Parts, levels: Mapping[str, int], steps: int) -> None:
    """Refuse a schedule with a phase in which no agent of the worker learns: that step would have nothing to train."""
    name = parts.schedule.spec.name
    schedule = parts.schedule.spec.factory(parts.schedule.options)
    for step in range(1, steps + 1):
        try:
            phase: Phase = schedule.phase(step)
            learns = any(phase.learns(role, level) for role, level in levels.items())
        except Exception as error:
            raise PluginError(f"schedule {name!r} does not say who learns in step {step}: {raised(error)}.") from error
        if not learns:
            has = ", ".join(f"{role} (level {level})" for role, level in levels.items())
            raise RecipeError(
                f"hier.schedule.name: in step {step} schedule {name!r} trains {_who(phase)} (phase {phase.name!r}), "
                f"and worker {parts.worker.spec.name!r} has no such agent; its roles are {has}."
            )


def _who(phase: Phase) -> str:
    """The roles and levels of a phase in words."""
    roles = [] if phase.roles is None else [f"the roles {', '.join(sorted(phase.roles)) or '(none)'}"]
    levels = [] if phase.levels is None else [_listed(sorted(phase.levels)) if phase.levels else "no level"]
    return " on ".join([*roles, *levels])


def _listed(levels: Iterable[int]) -> str:
    numbers = [str(level) for level in levels]
    return f"level{'s' if len(numbers) > 1 else ''} {' and '.join(numbers)}"
