import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from plan_first import estimator, sampler, worker
from verl_hier.credit.estimate import estimate
from verl_hier.environments.base import Environment, StepResult
from verl_hier.recipe.check import check_recipe
from verl_hier.recipe.compose import compose
from verl_hier.testing import check_estimator, check_sampler, check_worker, make_table, roll_out_scripted

RECIPE = Path(__file__).parents[1] / "plan_first.yaml"


class TwoSteps(Environment):
    """Ends after two steps; rewards the last action if it is `go`."""

    def reset(self, task: Mapping[str, Any], seed: int) -> StepResult:
        self._steps = 0
        return StepResult("start")

    def step(self, action: str) -> StepResult:
        self._steps += 1
        return StepResult("on", done=self._steps == 2, reward=float(self._steps == 2 and action == "go"))


def answer(prompt: str, sampling: Any) -> str:
    return "walk ; stop" if prompt.startswith("plan") else "go"


def test_the_estimator_passes_the_kit() -> None:
    check_estimator(estimator.ESTIMATOR)


def test_the_worker_passes_the_kit() -> None:
    check_worker(worker.WORKER, answer=answer)


def test_the_sampler_passes_the_kit() -> None:
    check_sampler(sampler.SAMPLER, worker=worker.WORKER, answer=answer, n=(3, 4))


def test_a_plan_is_compared_with_plans_and_an_execution_with_executions() -> None:
    parents, levels = [-1, 0, 0, -1, 3, 3], [0, 1, 1, 0, 1, 1]
    table = make_table({"parent": parents, "plan": parents, "level": levels, "reward": [0.0, 1.0, 0.0, 0.0, 0.0, 0.0]})
    signs = np.sign(estimate(estimator.ESTIMATOR, table).values)
    assert signs.tolist() == [1, 1, -1, -1, 0, 0]


def test_executions_share_their_plan() -> None:
    graph, _ = asyncio.run(
        roll_out_scripted(
            environment=TwoSteps,
            worker=worker.WORKER,
            sampler=sampler.PlanFirst(sampler.Options(plans=2)),
            answer=answer,
            n=4,
        )
    )
    episodes = list(graph.complete())
    assert [episode.ret for episode in episodes] == [1.0] * 4
    assert len({graph.path(episode.id)[0] for episode in episodes}) == 2


def test_the_recipe_is_sound() -> None:
    assert check_recipe(compose(str(RECIPE))).parts.sampler.spec is sampler.SAMPLER
