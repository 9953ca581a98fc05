"""The check refuses, with `engine: tree`, every recipe line that the engine would refuse in the run."""

from __future__ import annotations

import re
from typing import Any

import pytest
from omegaconf import OmegaConf

from verl_hier.errors import RecipeError
from verl_hier.recipe.checks.engine import REFUSED, check_engine
from verl_hier.recipe.compose import compose
from verl_hier.recipe.composed import ComposedRecipe

WRONG = {"strategy": "fsdp", "ulysses_sequence_parallel_size": 2}


def recipe(engine: str, line: str, given: Any) -> ComposedRecipe:
    config = compose("himac_alfworld", [f"engine={engine}"])
    OmegaConf.set_struct(config, False)
    OmegaConf.update(config, line, given)
    return ComposedRecipe.of(OmegaConf.to_container(config, resolve=True))


@pytest.mark.parametrize("line", REFUSED)
def test_every_refused_line_has_its_sentence(line: str) -> None:
    wrong, why = WRONG.get(line.rpartition(".")[2], True), REFUSED[line][1]
    with pytest.raises(RecipeError, match=f"^{re.escape(line)}: with engine: tree, {why}; set it to .*engine: stock"):
        check_engine(recipe("tree", line, wrong))
    check_engine(recipe("stock", line, wrong))


def test_the_lines_of_a_shipped_recipe_pass() -> None:
    check_engine(ComposedRecipe.named("himac_alfworld", ["engine=tree"]))
