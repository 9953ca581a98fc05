"""Pairs of a method and an environment that nobody has put together: two steps of the real trainer each."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.e2e.test_worlds import STEPS
from tests.fixtures.trainer import verl_hier
from verl_hier.ops.runs import RUNS, Run
from verl_hier.recipe import pairs
from verl_hier.recipe.catalogue import find

NEW = sorted(
    name
    for name in {*pairs.by_name()} - {*pairs.refused()} - {*pairs.tried()}
    if "cpu" in find(name).sizes and pairs.by_name()[name][1] not in ("scienceworld", "textworld_express")  # need Java
)


@pytest.mark.long
@pytest.mark.parametrize("name", random.Random("pairs").sample(NEW, 20))
def test_two_steps_of_a_pair(tmp_path: Path, name: str) -> None:
    """With a random model of the recipe's own vocabulary; what it says is mostly refused by the world, and trained."""
    method, environment = pairs.by_name()[name]
    model = tmp_path / "model"
    verl_hier(tmp_path, "tiny", method, environment, "--out", str(model))
    verl_hier(
        tmp_path,
        *("train", method, environment, *STEPS, f"actor_rollout_ref.model.path={model}", "hier.guards.on_alarm=warn"),
    )
    run = Run.all_in(tmp_path / RUNS / name)[-1]
    steps = [step for step in run.metrics() if "hier/rows/trained" in step]
    assert len(steps) == 2
    for step in steps:
        assert step["hier/episodes/failed"] == 0 and step["hier/rows/trained"] > 0
