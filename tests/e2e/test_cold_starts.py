"""Every recipe that starts from a small model on a CPU: its cold start, and a step of the trainer from there."""

from __future__ import annotations

import pytest

from tests.fixtures.trainer import only_trainer
from verl_hier.coldstart.recipe import ColdStart, cold_start
from verl_hier.recipe.catalogue import recipes
from verl_hier.recipe.compose import overridden

pytestmark = pytest.mark.long


@pytest.mark.parametrize("name", [recipe.name for recipe in recipes() if recipe.shipped and "cpu" in recipe.sizes])
def test_a_recipe_trains_from_its_cold_start(train, tmp_path, name):
    with only_trainer():
        model = cold_start(ColdStart((name,)), tmp_path / "coldstart")
    overrides = [
        f"actor_rollout_ref.model.path={model}",
        *("trainer.total_training_steps=1", "trainer.test_freq=-1", "trainer.save_freq=-1"),
        "trainer.logger=[console,file]",
    ]
    run = train(name, overridden(overrides))
    assert run.code == 0, run.log[-3000:]
    (step,) = (step for step in run.steps if "actor/grad_norm" in step)
    assert step["hier/rows/trained"] > 0 and step["hier/episodes/count"] > 0
    assert step["hier/episodes/failed"] == 0
