"""Every recipe of the size `cpu` from nothing, by the documented commands: cold start, then steps of the trainer."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fixtures.kept_models import kept_models
from tests.fixtures.trainer import verl_hier
from verl_hier.ops.progress import validation_of
from verl_hier.ops.runs import RUNS, Run
from verl_hier.recipe.catalogue import recipes

STEPS = 2


@pytest.fixture(scope="session")
def home() -> Path:
    """A folder for all runs, so that recipes with the same small model share it, also when these tests are resumed."""
    folder = kept_models()
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.mark.long
@pytest.mark.parametrize("name", [recipe.name for recipe in recipes() if recipe.shipped and "cpu" in recipe.sizes])
def test_a_recipe_trains_from_nothing(home: Path, name: str) -> None:
    said = verl_hier(home, "coldstart", name)
    assert said.splitlines()[-1] == f"next: verl-hier train {name}"
    verl_hier(
        home,
        *("train", name, "trainer.val_before_train=true", f"trainer.total_training_steps={STEPS}"),
        *("trainer.test_freq=-1", "trainer.save_freq=-1"),
    )
    run = Run.all_in(home / RUNS / name)[-1]
    steps = run.metrics()
    before = next(value for value in map(validation_of, steps) if value is not None)
    assert before > 0, "the policy of the cold start solves nothing, so nothing can be learnt from it"
    trained = [step for step in steps if "hier/rows/trained" in step]
    assert len(trained) == STEPS
    # Before this step a critic learns alone.
    first = run.recipe()["trainer"]["critic_warmup"]
    for number, step in enumerate(trained, 1):
        assert ("actor/grad_norm" in step) == (number >= first)
        assert step["hier/rows/trained"] > 0 and step["hier/episodes/failed"] == 0
