"""What an agent's result is worth: decided by the task and a named function, never by the agent."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from verl_hier.environments import scoring
from verl_hier.errors import RecipeError
from verl_hier.host.specs import named_function
from verl_hier_plugins.environments.gateway.options import SCORERS, GatewayOptions

Scorer = Callable[[Mapping[str, Any], str], float]
"""`score(task, result)`: the reward of a result, of which the task says what is right."""
_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")


def exact_match(task: Mapping[str, Any], result: str) -> float:
    """1 where the result equals one of the task's `answers` after normalisation."""
    return float(scoring.exact_match(result, task["answers"]))


def f1(task: Mapping[str, Any], result: str) -> float:
    """Token-level F1 with the best matching of the task's `answers`."""
    return scoring.f1(result, task["answers"])


def number(task: Mapping[str, Any], result: str) -> float:
    """1 where the last number of the result is the last number of one of the task's `answers`."""
    given = _last(result)
    return float(given is not None and any(given == _last(answer) for answer in task["answers"]))


def scorer_of(options: GatewayOptions) -> Scorer:
    """The scorer that a recipe names.

    Raises:
        RecipeError: when there is no such function.
    """
    if options.scorer in SCORERS:
        return {"exact_match": exact_match, "f1": f1, "number": number}[options.scorer]
    function = named_function(options.scorer, "hier.environment.scorer")

    def score(task: Mapping[str, Any], result: str) -> float:
        given = function(task, result)
        if not isinstance(given, int | float) or not math.isfinite(given):
            raise RecipeError(f"hier.environment.scorer: {options.scorer} returned {given!r:.60}, which is no number.")
        return float(given)

    return score


def _last(text: str) -> float | None:
    found = _NUMBER.findall(text[-2000:])
    return float(found[-1].replace(",", "")) if found else None
