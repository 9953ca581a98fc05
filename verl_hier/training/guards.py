"""Guards against frequent bugs: wrong groups, groups without a gradient, training on tokens that were not sampled."""

from __future__ import annotations

import logging
import math
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from verl_hier.credit.groups import equal_scores, no_spread
from verl_hier.errors import CreditError
from verl_hier.graph import TurnTable
from verl_hier.graph.columnar.light import Light
from verl_hier.training.limits import exceeds
from verl_hier.training.options import GuardOptions

logger = logging.getLogger(__name__)

FEWEST_REWARDED = 8
"""Rewarded tasks below which equal answers say nothing, and solved episodes below which missing calls do not."""
FEWEST_STEPS, LATEST_STEPS = 4, 8
"""Steps that the returns of a step are compared with."""


def group_metrics(table: TurnTable) -> dict[str, float]:
    """How many groups have one episode, and how many have equal returns throughout (no gradient)."""
    if not len(table):
        return {}
    groups = np.asarray(table["episodes.group"], dtype=np.int64)
    returns = np.asarray(table["episodes.return"], dtype=np.float64)
    count = np.bincount(groups)
    present = count > 0
    singleton = present & (count == 1)
    flat = present & equal_scores(returns, groups)
    return {
        "hier/groups/count": float(present.sum()),
        "hier/groups/size_mean": float(count[present].mean()),
        "hier/groups/singleton_share": float(singleton.sum() / present.sum()),
        "hier/groups/zero_variance_share": float(flat.sum() / present.sum()),
    }


def answer_metrics(light: Light) -> dict[str, float]:
    """How alike the rewarded episodes of different tasks are: a policy that found one answer for all has found a hole.

    Returns:
        `hier/rewards/same_answer_share`: of the tasks with a rewarded episode, the share in which the most frequent
        sequence of answers was rewarded. Left out with fewer than `FEWEST_REWARDED` such tasks.
    """
    answers = light.columns.episodes["answers"].to_pylist()
    owner = np.repeat(np.arange(len(light.uids)), light.sizes("episodes")).tolist()
    rewarded = {(task, answer) for task, answer in zip(owner, answers, strict=True) if answer is not None}
    tasks = {task for task, _ in rewarded}
    if len(tasks) < FEWEST_REWARDED:
        return {}
    counts = Counter(answer for _, answer in rewarded)
    return {"hier/rewards/same_answer_share": max(counts.values()) / len(tasks)}


def tool_metrics(light: Light) -> dict[str, float]:
    """How often a policy solves tasks without the tool that they are made for.

    Returns:
        `hier/rewards/without_tool_share`: of the solved episodes whose environment says whether its tool was used, the
        share in which it was not. Left out with fewer than `FEWEST_REWARDED` such episodes.
    """
    without = sum(each.get("solved_without_tool", 0) for each in light.counts)
    solved = without + sum(each.get("solved_with_tool", 0) for each in light.counts)
    return {"hier/rewards/without_tool_share": without / solved} if solved >= FEWEST_REWARDED else {}


class RewardHistory:
    """The returns of the latest steps: a policy that finds a hole in the rewards is suddenly rewarded much more."""

    def __init__(self) -> None:
        self._steps: deque[tuple[float, float]] = deque(maxlen=LATEST_STEPS)  # mean and variance of each

    def add(self, returns: Sequence[float] | NDArray[Any]) -> dict[str, float]:
        """Compare the returns of a step with those of the steps before, and remember them.

        Args:
            returns: (E,) of the step's episodes.

        Returns:
            `hier/rewards/jump`: by how many standard deviations of the returns of all these steps the mean return is
            higher than the mean of the steps before. Left out after fewer than `FEWEST_STEPS` steps.
        """
        values = np.asarray(returns, dtype=np.float64)
        if not values.size:
            return {}
        known = list(self._steps)
        self._steps.append((float(values.mean()), float(values.var())))
        if len(known) < FEWEST_STEPS:
            return {}
        means, variances = np.asarray([*known, self._steps[-1]]).T
        # The variance of all returns is that inside the steps and that between them; squares of returns would cancel.
        spread = math.sqrt(variances.mean() + means.var())
        rise = self._steps[-1][0] - float(np.mean([each for each, _ in known]))
        return {"hier/rewards/jump": 0.0 if no_spread(spread, means.mean()) else rise / spread}


def logprob_metrics(
    table: TurnTable, turn: NDArray[np.int64], mask: NDArray[Any], difference: NDArray[Any]
) -> dict[str, float]:
    """Mean |log p(rollout) - log p(training)| of the trained tokens of each role, by `difference`. Arrays are (N,)."""
    trained = (np.asarray(mask) > 0) & (turn >= 0)
    roles = np.asarray(table["role"], dtype=np.int64)[np.maximum(turn, 0)]
    metrics: dict[str, float] = {}
    for code, name in enumerate(table.names.get("role", ())):
        chosen = trained & (roles == code)
        if chosen.any():
            metrics[f"hier/logprob_difference/{name}"] = float(difference[chosen].mean())
    return metrics


@dataclass(frozen=True)
class _Limit:
    """A metric and the option of `GuardOptions` that limits it, with the sentence that an excess is worth.

    Attributes:
        metric: name of the metric; a step without it is within the limit.
        option: name of the option.
        found: what was found, with a place for the metric's value.
        advice: what to look at.
        of_groups: whether it concerns only estimators that compare the episodes of a group.
    """

    metric: str
    option: str
    found: str
    advice: str
    of_groups: bool = False


_LIMITS = (
    _Limit(
        "hier/groups/singleton_share",
        "max_singleton_share",
        "{:.0%} of the groups have a single episode, so a group-relative estimator has nothing to compare",
        "look at actor_rollout_ref.rollout.n and at lost episodes",
        of_groups=True,
    ),
    _Limit(
        "hier/groups/zero_variance_share",
        "max_zero_variance_share",
        "{:.0%} of the groups have equal returns throughout and give no gradient",
        "look at the tasks' difficulty",
        of_groups=True,
    ),
    _Limit(
        "hier/rewards/same_answer_share",
        "max_same_answer_share",
        "{:.0%} of the rewarded tasks were rewarded for the same answers",
        "look at what they are, the policy may have found a way around the tasks",
    ),
    _Limit(
        "hier/rewards/without_tool_share",
        "max_without_tool_share",
        "{:.0%} of the solved episodes did not use the environment's tool",
        "look at whether their answers can be guessed",
    ),
    _Limit(
        "hier/rewards/jump",
        "max_reward_jump",
        "the mean return is {:.1f} standard deviations above that of the steps before",
        "look at what is rewarded now, it may be a way around the tasks",
    ),
)


def alarm(metrics: dict[str, float], options: GuardOptions, needs_groups: bool) -> int:
    """Compare the step's metrics with the recipe's limits; log or raise a sentence for each excess.

    Returns:
        How many limits were exceeded; a metric that is no number exceeds every limit.

    Raises:
        CreditError: with `hier.guards.on_alarm: raise`.
    """
    problems: list[str] = []
    for limit in _LIMITS:
        value = metrics.get(limit.metric, 0.0)
        if exceeds(value, getattr(options, limit.option)) and (needs_groups or not limit.of_groups):
            found = limit.found.format(value) if math.isfinite(value) else f"{limit.metric} is {value}"
            problems.append(f"{found} (hier.guards.{limit.option}); {limit.advice}")
    for name, value in metrics.items():
        if name.startswith("hier/logprob_difference/") and exceeds(value, options.max_logprob_difference):
            problems.append(
                f"rollout and training disagree by {value:.3f} nats a token for role {name.rsplit('/', 1)[1]!r} "
                "(hier.guards.max_logprob_difference); what is trained may not be what was sampled"
            )
    if problems and options.on_alarm == "raise":
        raise CreditError("; ".join(problems) + ".")
    for problem in problems:
        logger.warning("guard: %s", problem)
    return len(problems)
