"""Curriculum by horizon: what a step may train on, and the exchange in a batch of verl's own making."""

from __future__ import annotations

import json
from importlib.util import find_spec

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verl_hier.errors import RecipeError
from verl_hier.recipe.schema import HierConfig
from verl_hier.training.curriculum import Curriculum
from verl_hier.training.options import CurriculumOptions


def curriculum(horizons=(1, 2, 3), stages=(1, 3), steps=(10,)):
    return Curriculum(CurriculumOptions(stages, steps), [{"horizon": horizon} for horizon in horizons])


def test_stages_follow_the_step():
    plan = curriculum(stages=(1, 2, 3), steps=(2, 3))
    assert [plan.longest(step) for step in (1, 2, 3, 5, 6, 100)] == [1, 1, 2, 2, 3, 3]


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_what_is_too_long_is_exchanged_and_nothing_else(data):
    horizons = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=30))
    longest = data.draw(st.integers(min(horizons), 4))
    places = data.draw(st.permutations(range(len(horizons))))[: data.draw(st.integers(1, 30))]
    plan = Curriculum(CurriculumOptions((longest,)), [{"horizon": horizon} for horizon in horizons])
    found = plan.admit(1, places)
    assert len(found) == len(places) and all(horizons[place] <= longest for place in found)
    assert all(new == old for new, old in zip(found, places, strict=True) if horizons[old] <= longest)
    # No task comes twice while there is another one.
    short = sum(horizon <= longest for horizon in horizons)
    assert len(set(found)) == min(len(places), short)
    assert found == plan.admit(1, places)


def test_the_last_stage_changes_nothing():
    assert curriculum().admit(11, [2, 0, 1]) == [2, 0, 1]
    assert curriculum().admit(10, [2, 0, 1]) == [0, 0, 0]


def test_tasks_must_say_their_horizon():
    with pytest.raises(RecipeError, match=r"hier\.curriculum\.horizons: the tasks of this environment have no"):
        Curriculum(CurriculumOptions((1,)), [{"horizon": 1}, {}])
    with pytest.raises(RecipeError, match="no task has a horizon of 1 or less"):
        curriculum(horizons=(2, 3))


@pytest.mark.parametrize("bad", [{"horizons": [1, 2]}, {"steps": [5]}, {"horizons": [1, 2], "steps": [0]}])
def test_stages_and_steps_must_fit(bad):
    parts = {kind: {"name": "x"} for kind in ("environment", "worker", "sampler", "estimator")}
    with pytest.raises(RecipeError, match=r"hier\.curriculum.*(numbers of steps|at least 1)"):
        HierConfig.of({"hier": {**parts, "curriculum": bad}})


@pytest.mark.skipif(not (find_spec("alfworld") and find_spec("textworld")), reason="needs the alfworld extra")
def test_a_batch_of_verls_data_loader_is_exchanged():
    """verl's collate function and TensorDict, our data set and trainer mixin; no process is started."""
    import verl.trainer.ppo.v1  # noqa: F401  brings our trainers, which cannot be imported before it
    from verl.utils import tensordict_utils as tu
    from verl.utils.dataset.rl_dataset import collate_fn

    from verl_hier.compat.dataset import TaskDataset
    from verl_hier.compat.trainer import HierSync
    from verl_hier.recipe.compose import compose

    overrides = ["hier.environment.goals=[1,2]", "hier.curriculum.horizons=[1,2]", "hier.curriculum.steps=[3]"]
    config = compose("metaagentx_alfworld", [*overrides, "hier.environment.pool=8"])
    trainer = object.__new__(HierSync)
    trainer.hier = HierConfig.of(config)
    trainer.train_dataset = TaskDataset("train", None, config.data)
    trainer._drawn = {}
    drawn = [trainer.train_dataset[place] for place in (0, 1, 2, 3)]

    def exchanged(step):
        batch = tu.get_tensordict(collate_fn(drawn))
        trainer.global_steps = step
        trainer._exchange_for_shorter(batch)
        assert len(batch) == 4
        return [
            (int(index), json.loads(task), prompt)
            for index, task, prompt in zip(
                *(tu.get(batch, n) for n in ("index", "hier_task", "raw_prompt")), strict=True
            )
        ]

    assert [task["horizon"] for task in trainer.train_dataset.tasks] == [1, 2] * 4
    first = exchanged(3)
    assert {task["horizon"] for _, task, _ in first} == {1} and len({index for index, *_ in first}) == 4
    for index, task, prompt in first:
        assert task == trainer.train_dataset.tasks[index] and prompt[0]["content"] == task["instruction"]
    assert [index for index, *_ in exchanged(4)] == [0, 1, 2, 3]


def test_a_task_that_the_step_has_already_is_not_taken_again():
    plan = curriculum(horizons=(1, 2, 1, 1), stages=(1, 3))
    assert plan.admitted(1) == 3 and plan.admitted(11) == 4
    assert plan.admit(1, [1], {2}) == [3] and plan.admit(1, [1], {2, 3}) == [0]
    assert plan.admit(1, [1], {0, 2, 3}) == [2], "there is no other one left"
