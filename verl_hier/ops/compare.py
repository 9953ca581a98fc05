"""Runs side by side: what they reached at equal tokens, episodes and time, and in what their recipes differ.

Every figure is one that a run has measured, and says where; nothing is read off between two measurements or before the
first. Runs of unlike tasks are not compared, see `ops.tasks_of_runs`. Runs whose recipes differ in nothing but seeds
and folders are one arm; their spread is that of the seeds.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from verl_hier.errors import HierError, did_you_mean
from verl_hier.ops.progress import validation_of
from verl_hier.ops.runs import Run
from verl_hier.ops.tasks_of_runs import alike, sentence

HELD_OUT = "held-out success"
_SUCCESS, _RETURN = "hier/episodes/success", "hier/episodes/return_mean"
_TITLES = {_SUCCESS: "success in training", _RETURN: "return in training"}
_NOT_COMPARED = re.compile(
    r"(.*\.)?(seed|experiment_name|project_name)|trainer\.default_local_dir|hier\.store\.path|data\.hier\..*"
)
"""Keys of a recipe that may differ between the runs of an arm; `data.hier` repeats `hier` for verl's data set."""
_LAST = 3
"""A measure of training is averaged over the last third of a budget, because a single step has few episodes."""

BUDGETS: dict[str, Callable[[Mapping[str, Any]], float]] = {
    "tokens": lambda record: record.get("hier/tokens/generated", 0.0),
    "episodes": lambda record: record.get("hier/episodes/count", 0.0),
    "seconds": lambda record: record.get("timing_s/step", 0.0) + record.get("timing_s/testing", 0.0),
}
"""What is spent in a step, by name: sampled tokens, episodes, and wall time with its validation."""


@dataclass(frozen=True)
class Measured:
    """A figure of a run.

    Attributes:
        value: the measurement, or the mean of several.
        first, last: what the run had spent at the first and the last of them.
    """

    value: float
    first: float
    last: float


@dataclass(frozen=True)
class Curve:
    """A measure of one run over what was spent; all arrays have a place for each of its P measurements."""

    run: Run
    held_out: bool
    """Whether it was measured on held-out tasks, after an update; else on the rollouts before one."""
    values: NDArray[np.float64]
    spent: Mapping[str, NDArray[np.float64]]
    """By name of a budget, what the run had spent before each measurement."""

    def at(self, budget: str, amount: float) -> Measured | None:
        """What was measured within an amount: on held-out tasks the last measurement; in training the mean of those in
        the last third of the amount, or the last one. None when nothing was measured by then."""
        spent = self.spent[budget]
        within = np.flatnonzero(spent <= amount)
        if not within.size:
            return None
        late = within[_LAST * (amount - spent[within]) <= amount]
        places = within[-1:] if self.held_out or not late.size else late
        return Measured(float(self.values[places].mean()), float(spent[places[0]]), float(spent[places[-1]]))

    def first(self, budget: str) -> Measured:
        """The first measurement."""
        spent = float(self.spent[budget][0])
        return Measured(float(self.values[0]), spent, spent)


@dataclass(frozen=True)
class Arm:
    """Runs of one recipe.

    Attributes:
        name: of the recipe, with what tells it from other arms where they share the name.
        recipe: key to value, of the composed configuration of its first run.
        curves: one for each run.
    """

    name: str
    recipe: Mapping[str, Any]
    curves: tuple[Curve, ...]

    def at(self, budget: str, amount: float) -> list[Measured | None]:
        """What each run had measured within an amount."""
        return [curve.at(budget, amount) for curve in self.curves]


@dataclass(frozen=True)
class Comparison:
    """Arms, and the measure that they are compared by."""

    measure: str
    arms: tuple[Arm, ...]

    @cached_property
    def amounts(self) -> dict[str, float]:
        """By name of a budget, the most that every run has spent."""
        curves = [curve for arm in self.arms for curve in arm.curves]
        return {budget: min(float(curve.spent[budget][-1]) for curve in curves) for budget in BUDGETS}

    def differences(self) -> list[tuple[str, list[str]]]:
        """The keys in which the recipes of the arms differ, ours first, each with a value for each arm."""
        keys = sorted({key for arm in self.arms for key in arm.recipe}, key=lambda key: (not _ours(key), key))
        rows = [(key, [_word(arm.recipe.get(key)) for arm in self.arms]) for key in keys if _is_compared(key)]
        return [(key, words) for key, words in rows if len(set(words)) > 1]


def compare(runs: Iterable[Run], metric: str | None = None) -> Comparison:
    """Read runs and put those of one recipe together, in the order in which they are given.

    Args:
        runs: finished or under way.
        metric: a metric of the runs; None for success on held-out tasks, or the success or return of training where a
            run has measured that on held-out tasks less than twice.

    Raises:
        HierError: when a run has measured nothing, or not this metric, or when they play unlike tasks.
    """
    read = [(run, [_numbers(record) for record in run.metrics()]) for run in runs]
    for run, records in read:
        if not any("timing_s/step" in record for record in records):
            raise HierError(f"{run.folder} has no metrics of a finished step yet.")
    measure = metric or _shared_measure([records for _, records in read])
    groups, why = by_tasks([run for run, _ in read], measure)
    if len(groups) > 1:
        raise HierError(why)
    found: dict[str, tuple[Mapping[str, Any], list[Curve]]] = {}
    for run, records in read:
        recipe = _flat(run.recipe())
        same = repr(sorted((key, _word(value)) for key, value in recipe.items() if _is_compared(key)))
        found.setdefault(same, (recipe, []))[1].append(curve_of(run, records, measure))
    names = _names([recipe for recipe, _ in found.values()])
    arms = [Arm(name, recipe, tuple(curves)) for name, (recipe, curves) in zip(names, found.values(), strict=True)]
    return Comparison(_TITLES.get(measure, measure), tuple(arms))


def by_tasks(runs: Sequence[Run], metric: str | None = None) -> tuple[list[list[Run]], str]:
    """The runs in groups of one set of tasks each, and a sentence on why they are apart; empty for one group.

    Args:
        runs: to group.
        metric: that they are compared by; see `compare`.

    Raises:
        HierError: when the recipe of a run cannot be read.
    """
    held_out = metric is None or _is_held_out(metric)
    recipes = [_flat(run.recipe()) for run in runs]
    groups = alike(recipes, held_out)
    why = sentence([recipes[group[0]] for group in groups], held_out) if len(groups) > 1 else ""
    return [[runs[place] for place in group] for group in groups], why


def _is_held_out(measure: str) -> bool:
    return measure == HELD_OUT or measure.startswith(("val-", "hier/validation/"))


def curve_of(run: Run, records: Sequence[Mapping[str, Any]], measure: str) -> Curve:
    """The curve of a measure, from the metrics of a run.

    Raises:
        HierError: when the run has never measured it.
    """
    held_out = _is_held_out(measure)
    total = dict.fromkeys(BUDGETS, 0.0)
    spent: dict[str, list[float]] = {budget: [] for budget in BUDGETS}
    values: list[float] = []
    for record in records:
        before = dict(total)
        for budget, of in BUDGETS.items():
            total[budget] += of(record)
        value = validation_of(record) if measure == HELD_OUT else record.get(measure)
        if value is not None:
            values.append(float(value))
            for budget in BUDGETS:
                # Validation follows the update of its step; what is measured in training precedes it.
                spent[budget].append((total if held_out else before)[budget])
    if not values:
        known = {name for record in records for name in record}
        raise HierError(f"{run.folder} has no metric {measure!r}{did_you_mean(measure, known)}.")
    return Curve(run, held_out, np.array(values), {budget: np.array(amounts) for budget, amounts in spent.items()})


def _numbers(record: Mapping[str, Any]) -> dict[str, float]:
    """The metrics that are finite numbers; a step that diverged may have others."""
    return {
        name: value
        for name, value in record.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    }


def _shared_measure(runs: Sequence[Sequence[Mapping[str, Any]]]) -> str:
    """The first measure that every run has: at least two of held-out tasks, or one of training."""
    if all(sum(validation_of(record) is not None for record in records) > 1 for records in runs):
        return HELD_OUT
    return _SUCCESS if all(any(_SUCCESS in record for record in records) for records in runs) else _RETURN


def _names(recipes: Sequence[Mapping[str, Any]]) -> list[str]:
    """A name for each arm: that of its recipe, and what tells it from arms that share this name."""
    names = [str(recipe.get("hier.recipe.name", "recipe")) for recipe in recipes]
    found = []
    for name, recipe in zip(names, recipes, strict=True):
        others = [other for its, other in zip(names, recipes, strict=True) if its == name and other is not recipe]
        keys = [key for key in sorted(recipe) if _is_compared(key) and any(o.get(key) != recipe[key] for o in others)]
        # What follows from a choice of ours, such as sizes of verl's, would only make the name longer.
        keys = ([key for key in keys if _ours(key)] or sorted(keys, key=len))[:2]
        differs = [f"{key.removeprefix('hier.')}={_word(recipe[key])}" for key in keys]
        found.append(" ".join([name] * (len(set(names)) > 1 or not differs) + differs))
    return [name if found.count(name) == 1 else f"{name} ({place})" for place, name in enumerate(found, start=1)]


def _flat(config: Any) -> dict[str, Any]:
    """Dotted keys to the values of a configuration; lists are values."""
    from omegaconf import OmegaConf

    found: dict[str, Any] = {}

    def add(value: Any, key: str) -> None:
        if isinstance(value, Mapping) and value:
            for name, inner in value.items():
                add(inner, f"{key}.{name}" if key else str(name))
        else:
            found[key] = value

    add(OmegaConf.to_container(config, resolve=False), "")
    return found


def _is_compared(key: str) -> bool:
    return not _NOT_COMPARED.fullmatch(key)


def _ours(key: str) -> bool:
    return key.startswith("hier.")


def _word(value: Any) -> str:
    return "" if value is None else str(value)
