"""A recipe in which some step would have nothing to train is refused, and the worker is named."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from verl_hier.errors import PluginError, RecipeError
from verl_hier.host.manager import PluginHost
from verl_hier.host.part import Part
from verl_hier.host.specs import EstimatorSpec, NoOptions, ScheduleSpec, WorkerSpec
from verl_hier.recipe.checks.roles import check_roles
from verl_hier.recipe.composed import ComposedRecipe
from verl_hier.recipe.parts import Parts
from verl_hier.recipe.schema import HierConfig
from verl_hier.training.schedule import Phase, Schedule
from verl_hier_plugins.schedules.alternating import AlternatingOptions, hier_schedules
from verl_hier_plugins.workers.agent_flow import AgentFlowOptions
from verl_hier_plugins.workers.agent_flow import hier_workers as agent_flow
from verl_hier_plugins.workers.chain_of_agents import WORKER
from verl_hier_plugins.workers.chain_of_agents.worker import ChainOptions


class Late(Schedule):
    """Says in words of its own who learns: roles first, and from step 5 on what it is given."""

    def __init__(self, later: Any) -> None:
        self._later = later

    def phase(self, step: int) -> Phase:
        return self._later if step >= 5 else Phase("early")


def late(phase: Any) -> Part:
    return Part(ScheduleSpec("late", lambda options: Late(phase)), NoOptions())


def check(worker: WorkerSpec, schedule: Part, options: Any = None, steps: int | None = None) -> None:
    parts = Parts(
        environment=Part(None, None),
        worker=Part(worker, options or worker.options()),
        sampler=Part(None, None),
        estimator=Part(EstimatorSpec("any", lambda table, options: None), NoOptions()),
        schedule=schedule,
    )
    config = {"trainer": {"total_training_steps": steps}}
    hier = HierConfig(environment={}, worker={}, sampler={}, estimator={})
    check_roles(ComposedRecipe(config, hier, PluginHost.load({}), parts))


STAGE = WorkerSpec("stage", dict, roles={"planner": 0, "worker": 1})


def test_levels_that_the_worker_has_are_accepted() -> None:
    check(STAGE, Part(hier_schedules(), AlternatingOptions()))
    check(STAGE, late(Phase("late", roles=frozenset({"worker"}))))


@pytest.mark.parametrize(
    ("phase", "words"),
    [
        (Phase("late", levels=frozenset({2})), "trains level 2 (phase 'late')"),
        (Phase("late", levels=frozenset()), "trains no level (phase 'late')"),
        (Phase("late", roles=frozenset({"wroker"})), "trains the roles wroker (phase 'late')"),
        (
            Phase("late", levels=frozenset({0}), roles=frozenset({"worker"})),
            "trains the roles worker on level 0 (phase 'late')",
        ),
    ],
)
def test_a_phase_without_an_agent_is_refused_at_its_step(phase: Phase, words: str) -> None:
    with pytest.raises(RecipeError) as error:
        check(STAGE, late(phase), steps=8)
    assert str(error.value) == (
        f"hier.schedule.name: in step 5 schedule 'late' {words}, and worker 'stage' has no such agent; its roles are "
        "planner (level 0), worker (level 1)."
    )
    check(STAGE, late(phase), steps=4)


def test_a_schedule_that_fails_is_named() -> None:
    with pytest.raises(PluginError, match="schedule 'late' does not say who learns in step 5: AttributeError"):
        check(STAGE, late(None))


@pytest.mark.parametrize(
    ("roles", "words"),
    [
        ({}, "worker 'stage' declares no roles"),
        ({"planner": -1}, "worker 'stage' puts the role 'planner' on level -1"),
        ({"planner": "high"}, "worker 'stage' puts the role 'planner' on level 'high'"),
    ],
)
def test_a_spec_without_proper_roles_is_refused(roles: Any, words: str) -> None:
    with pytest.raises(PluginError, match=words):
        check(dataclasses.replace(STAGE, roles=roles), late(Phase("late")))


def test_only_roles_that_take_turns_with_these_options_count() -> None:
    verifier = late(Phase("late", roles=frozenset({"verifier"})))
    check(agent_flow(), verifier, AgentFlowOptions())
    with pytest.raises(RecipeError, match=r"its roles are planner \(level 0\), executor \(level 1\)\."):
        check(agent_flow(), verifier, AgentFlowOptions(verifier=False))


def test_agents_that_only_a_grammar_names_are_roles() -> None:
    options = ChainOptions(grammar={"plan": ("critic", "tool")})
    assert WORKER.levels(options) == {**WORKER.levels(ChainOptions()), "critic": 1}
    check(WORKER, late(Phase("late", roles=frozenset({"critic"}))), options)
