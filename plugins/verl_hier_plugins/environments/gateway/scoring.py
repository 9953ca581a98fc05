"""What an agent's result is worth: decided by the task and a named function, never by the agent."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from verl_hier.environments import scoring
from verl_hier.environments.math_answers import require_math_verify
from verl_hier.errors import RecipeError
from verl_hier.host.lazy import named_function
from verl_hier_plugins.environments.gateway.options import SCORERS, GatewayOptions

Scorer = Callable[[Mapping[str, Any], str], float]
"""`score(task, result)`: the reward of a result, of which the task says what is right."""


def f1(task: Mapping[str, Any], result: str) -> float:
    """Token-level F1 with the best matching of the task's `answers`."""
    return scoring.f1(result, task["answers"])


def scorer_of(options: GatewayOptions) -> Scorer:
    """The scorer that a recipe names.

    Raises:
        RecipeError: when there is no such function, or a package that it needs is not installed.
    """
    if options.scorer == "f1":
        return f1
    if options.scorer == "math_verify":
        require_math_verify("hier.environment.scorer")
    if options.scorer in SCORERS:
        matches = scoring.MATCHES[options.scorer]
        return lambda task, result: float(matches(result, task["answers"]))
    function = named_function(options.scorer, "hier.environment.scorer")

    def score(task: Mapping[str, Any], result: str) -> float:
        given = function(task, result)
        if not isinstance(given, int | float) or not math.isfinite(given):
            raise RecipeError(f"hier.environment.scorer: {options.scorer} returned {given!r:.60}, which is no number.")
        return float(given)

    return score
