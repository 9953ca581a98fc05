"""The reward functions that a recipe names, imported and checked before anything starts."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from verl_hier.errors import RecipeError, did_you_mean
from verl_hier.host.lazy import named_function
from verl_hier.host.part import Part
from verl_hier.recipe.schema import HierConfig
from verl_hier.rollout.rewards import Reward


def rewards_of(hier: HierConfig) -> dict[str, Reward]:
    """Name to reward function.

    Raises:
        RecipeError: when a function cannot be imported, does not take its options, or refuses them itself.
    """
    found = {}
    for name, given in hier.rewards.items():
        function = named_function(given.function, f"hier.rewards.{name}.function")
        _check_call(name, function, given.options)
        found[name] = Reward(function, given.weight, given.per, given.roles, given.agents, given.options)
    return found


def check_rewards(rewards: Mapping[str, Reward], worker: Part) -> None:
    """Refuse rewards for roles that nobody has.

    Raises:
        RecipeError: naming the line of the reward.
    """
    spec = worker.spec
    known = dict.fromkeys(spec.roles if spec.active_roles is None else spec.active_roles(worker.options))
    for name, reward in rewards.items():
        unknown = [role for role in reward.roles if role not in known]
        if unknown:
            raise RecipeError(
                f"hier.rewards.{name}.roles: the worker {spec.name!r} has no role {unknown[0]!r}"
                f"{did_you_mean(unknown[0], known)}; it has {', '.join(known)}."
            )


def _check_call(name: str, function: Callable[..., Any], options: Mapping[str, Any]) -> None:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some functions of C have none
        return
    try:
        signature.bind(object(), **options)
    except TypeError as error:
        raise RecipeError(
            f"hier.rewards.{name}.options: {function.__name__}{signature} cannot be called with an episode or turn and "
            f"these options: {error}."
        ) from error
    check = getattr(function, "check_options", None)
    if check is not None:
        try:
            check(options)
        except ValueError as error:
            raise RecipeError(f"hier.rewards.{name}.options.{error}") from error
