"""Every recipe of the size `cpu` from nothing, by the documented commands: cold start, then steps of the trainer."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fixtures.trainer import only_trainer
from verl_hier.ops.progress import validation_of
from verl_hier.ops.runs import RUNS, Run
from verl_hier.recipe.catalogue import recipes

STEPS = 2


def verl_hier(folder: Path, *arguments: str) -> str:
    """Run a command in a folder, and return what it prints.

    Raises:
        AssertionError: when it fails.
    """
    variables = {**os.environ, "OMP_NUM_THREADS": "1"}
    with only_trainer():
        ended = subprocess.run(
            [sys.executable, "-m", "verl_hier.cli.main", *arguments],
            cwd=folder,
            env=variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
    assert ended.returncode == 0, ended.stdout[-4000:]
    return ended.stdout


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for all runs, so that recipes with the same small model share it."""
    return tmp_path_factory.mktemp("from_nothing")


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
    steps = Run.all_in(home / RUNS / name)[-1].metrics()
    before = next(value for value in map(validation_of, steps) if value is not None)
    assert before > 0, "the policy of the cold start solves nothing, so nothing can be learnt from it"
    trained = [step for step in steps if "actor/grad_norm" in step]
    assert len(trained) == STEPS
    for step in trained:
        assert step["hier/rows/trained"] > 0 and step["hier/episodes/failed"] == 0


@pytest.mark.slow
def test_train_makes_the_model_first_where_it_is_asked_to(tmp_path: Path) -> None:
    """With the worker whose four modules no expert plays."""
    small = ["hier.environment.pool=8", "hier.environment.validation=2"]
    cold = ["hier.coldstart.episodes=8", "hier.coldstart.steps=4", "hier.coldstart.batch_size=4"]
    run = ["trainer.total_training_steps=1", "trainer.test_freq=-1", "trainer.save_freq=-1", "data.train_batch_size=2"]
    run += ["actor_rollout_ref.rollout.n=2", "actor_rollout_ref.actor.ppo_mini_batch_size=2"]
    said = verl_hier(tmp_path, "train", "agentflow_alfworld", "--from-scratch", *small, *cold, *run)
    assert "3/3 4 steps of supervised training" in said
    assert (tmp_path / "runs/coldstart/alfworld_agent_flow/model/config.json").is_file()
    (trained,) = Run.all_in(tmp_path / RUNS / "agentflow_alfworld")
    assert ["actor/grad_norm" in step for step in trained.metrics()] == [True]
