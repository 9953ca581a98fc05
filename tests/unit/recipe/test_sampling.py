"""Sampling of turns that are trained: another temperature is refused, a cut distribution is noted."""

from __future__ import annotations

import pytest

from verl_hier.errors import RecipeError
from verl_hier.recipe.check import check_recipe
from verl_hier.recipe.compose import compose

RECIPE = "marft_math"
LINE = "actor_rollout_ref.rollout."


def role() -> str:
    return next(iter(compose(RECIPE).hier.worker.roles))


@pytest.mark.parametrize("temperature", [0.5, 0.99, 2.0])
def test_a_role_that_learns_has_the_temperature_of_the_recipe(temperature: float) -> None:
    line = f"hier.worker.roles.{role()}.temperature"
    with pytest.raises(RecipeError) as refused:
        check_recipe(compose(RECIPE, [f"{line}={temperature}"]))
    assert str(refused.value).startswith(line)
    usual = compose(RECIPE).actor_rollout_ref.rollout.temperature
    check_recipe(compose(RECIPE, [f"{line}={usual}"]))


@pytest.mark.parametrize(("override", "noted"), [("top_p=0.9", True), ("top_k=20", True), ("top_p=1.0", False)])
def test_a_cut_distribution_is_noted(override: str, noted: bool) -> None:
    for line in (LINE, f"hier.worker.roles.{role()}."):
        if line != LINE and not noted:
            continue
        notes = check_recipe(compose(RECIPE, [f"{line}{override}"])).notes
        assert any(note.startswith(f"{line}{override.partition('=')[0]}: ") for note in notes) == noted
