"""Columns that an estimator reads, and that parts fill: found out before a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from verl_hier.credit.estimate import estimate
from verl_hier.credit.tables import make_table
from verl_hier.errors import CreditError, RecipeError
from verl_hier.host.part import Part
from verl_hier.host.specs import EstimatorSpec, WorkerSpec
from verl_hier.recipe.checks.columns import check_read_columns
from verl_hier.recipe.checks.parts import check_columns
from verl_hier.recipe.composed import ComposedRecipe


def recipe(factory: Callable[[Any, Any], Any], **declared: Any) -> ComposedRecipe:
    """A shipped recipe with an estimator of a user's own."""
    base = ComposedRecipe.named("grpo_sokoban")
    spec = EstimatorSpec("mine", factory, **declared)
    return replace(base, parts=replace(base.parts, estimator=Part(spec, spec.options())))


READS: dict[str, tuple[Callable[[Any, Any], Any], str]] = {
    "a typo": (lambda table, options: table["retrun"], "did you mean 'return'"),
    "an episode's typo": (lambda table, options: table["episodes.succes"], "episodes.success"),
    "below turns": (lambda table, options: table.turns["peak"], "'peak'"),
    "below tokens": (lambda table, options: table.tokens["switch"], "'tokens.switch'"),
    "of another world": (lambda table, options: table["judge"] - table["return"], "'judge'"),
    "behind others": (lambda table, options: np.where(table["done"], table["return"], table["value"]), "'value'"),
}


@pytest.mark.parametrize("name", READS)
def test_a_column_that_is_not_there_is_named_before_the_run(name: str) -> None:
    factory, names = READS[name]
    with pytest.raises(RecipeError) as refused:
        check_read_columns(recipe(factory))
    assert "'mine'" in str(refused.value) and names in str(refused.value)
    assert str(refused.value).startswith("hier.estimator.name: ")


@pytest.mark.parametrize(
    "factory",
    [
        lambda table, options: table["return"] - table["episodes.return"].mean(),
        lambda table, options: table["judge"] if "judge" in table else table["return"],
        lambda table, options: {}["nothing of the table"],
        lambda table, options: 1 / 0,
        lambda table, options: table["return"].reshape(7, 7),
    ],
)
def test_other_estimators_pass(factory: Callable[[Any, Any], Any]) -> None:
    """Those that stumble over something else too: the numbers of the table mean nothing."""
    check_read_columns(recipe(factory))


def test_the_first_step_names_the_estimator_and_the_nearest_column() -> None:
    spec = EstimatorSpec("mine", lambda table, options: table["retrun"])
    with pytest.raises(CreditError) as error:
        estimate(spec, make_table({"group": [0, 0], "episode": [0, 1], "reward": [0.0, 1.0]}))
    assert "estimator 'mine'" in str(error.value) and "did you mean 'return'" in str(error.value)


@dataclass(frozen=True)
class Options:
    critic: bool = True


def test_columns_can_depend_on_options() -> None:
    base = recipe(lambda table, options: table["redo"], requires=("redo",))
    spec = WorkerSpec(
        "mine", lambda options: None, Options, roles={"agent": 0}, provides=lambda o: ("redo",) if o.critic else ()
    )
    assert spec.fills() == ("redo",)
    for critic in (True, False):
        given = replace(base, parts=replace(base.parts, worker=Part(spec, Options(critic))))
        if critic:
            check_columns(given)
            check_read_columns(given)
        else:
            with pytest.raises(RecipeError, match="'redo'"):
                check_columns(given)
