"""Fields of prompts that nothing fills, whether or not the worker says that its texts are templates."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any

import pytest

from verl_hier.errors import RecipeError
from verl_hier.host.constraints import STANDARD_FIELDS, Template
from verl_hier.host.part import Part
from verl_hier.host.specs import WorkerSpec
from verl_hier.recipe.checks.prompts import check_misspelt_fields
from verl_hier.recipe.composed import ComposedRecipe


@dataclass(frozen=True)
class Plain:
    planner_prompt: str = "plan: {instruction}"


@dataclass(frozen=True)
class Later:
    planner_prompt: Annotated[str, Template("subgoal", later=True)] = "plan: {instruction}"


def recipe(options: Any) -> ComposedRecipe:
    base = ComposedRecipe.named("grpo_sokoban")
    spec = WorkerSpec("mine", lambda options: None, type(options), roles={"agent": 0})
    return replace(base, parts=replace(base.parts, worker=Part(spec, options)))


TYPOS = [f"{field}s" for field in STANDARD_FIELDS] + [field[:-1] for field in STANDARD_FIELDS]
TYPOS += [field[0] + field[2:] for field in STANDARD_FIELDS]


@pytest.mark.parametrize("options", [Plain, Later])
@pytest.mark.parametrize("typo", [*TYPOS, "instruction_", "Observation"])
def test_a_misspelt_field_is_refused(options: type, typo: str) -> None:
    with pytest.raises(RecipeError) as refused:
        check_misspelt_fields(recipe(options(f"do {{{typo}}} now")))
    assert str(refused.value).startswith("hier.worker.planner_prompt: ") and "did you mean" in str(refused.value)


@pytest.mark.parametrize(
    "text", ["{instruction}", "{my_own_field}", "{", '{"score": 3}', "{{instructions}}", "none", "{plan} {observation}"]
)
def test_other_texts_pass(text: str) -> None:
    check_misspelt_fields(recipe(Plain(text)))
