"""Why methods do not learn: for each cause, a method learns once this one thing is taken away."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from verl_hier.host.manager import PluginHost
from verl_hier.host.options import build_options
from verl_hier.lab import study
from verl_hier.lab.learn import Setting, learn
from verl_hier.lab.methods import method
from verl_hier.lab.reasons import BUDGET, CAUSES, cause
from verl_hier.lab.rollouts import Shape
from verl_hier.lab.sampled import play_sampled
from verl_hier.lab.steps import Steps
from verl_hier.lab.study import LEARNS
from verl_hier.lab.world import World
from verl_hier.lab.worlds import WORLDS, Sketch, two_clocks
from verl_hier.training.schedule import Phase

HOST = PluginHost.load({"builtin": True})
SHORT = Setting(turns=12_000, tasks=4, rate=0.2)
"""For samplers of the real path, which take a second for 3,000 turns."""
EVERYWHERE = Shape(2, dict.fromkeys(range(5), 2))
"""Two alternatives of each of six turns."""


@dataclass(frozen=True)
class Without:
    """A method in a world, and what is changed there.

    Attributes:
        name, world: what does not learn, or only in part.
        options: of the estimator.
        shape: of the episodes, in its place its name, or options of the sampler.
        schedule: options of the schedule.
        changed: the world without what the cause names.
        setting: of the run.
    """

    name: str
    world: str
    options: dict[str, Any] = field(default_factory=dict)
    shape: Shape | dict[str, Any] | str | None = None
    schedule: dict[str, Any] = field(default_factory=dict)
    changed: World | None = None
    setting: Setting = field(default_factory=Setting)


def one_agent(name: str) -> World:
    """A world in which one agent takes all turns."""
    world = WORLDS[name]
    nobody = np.zeros_like(world.role)
    one = replace(world, role=nobody, roles=world.roles[:1], level=nobody)
    return replace(one, agent=nobody, agents=world.roles[:1])


def only_both_pay() -> World:
    """`two_clocks`, where one subgoal alone earns nothing, so that the last action earns or does not."""
    world = WORLDS["two_clocks"]
    return replace(world, reward=np.where(world.reward < 1, 0.0, world.reward))


def later_plans_of_the_executor() -> World:
    """`two_clocks`, where the second plan belongs to the executor's level."""
    world = WORLDS["two_clocks"]
    later = world.plans & (world.start == 0)
    return replace(world, level=np.where(later, 1, world.level))


def ends(*, losses_go_on: bool = False, equally_long: bool = False) -> World:
    """`early_end`, where a turn follows a loss as it follows a win, or where who stops waits until the others stop."""
    sketch, luck = Sketch(2), {"won": 0.5, "lost": 0.5}
    for turn in range(5):
        sketch.act(turn, 0, ("wait", turn + 1) if equally_long and turn < 4 else luck)
        sketch.act(turn, 1, {"won": 0.9, "lost": 0.1} if turn == 4 else turn + 1)
        if equally_long and turn:
            sketch.act(("wait", turn), 0, luck if turn == 4 else ("wait", turn + 1))
    sketch.act("won", 0, "paid", reward=1.0)
    if losses_go_on or equally_long:
        sketch.act("lost", 0, "unpaid")
    sketch.goal("paid")
    return sketch.world("early_end", "another one", 6)


FIRST = ("grpo@overprovision", "treeps_rag@treeps_rag")
"""Samplers that keep the episodes that end first."""
CASES: dict[str, list[Without]] = {
    "own reward": [
        Without("at_grpo", "maze", {"score": "return"}),
        Without("epo_explicit", "maze", {"gamma": 1.0}),
    ],
    "own plan": [
        Without("dual_loop", "two_clocks", shape=Shape(2, {0: 2, 3: 2}), changed=two_clocks(subgoals_pay=True))
    ],
    "own agent": [
        Without(name, world, changed=one_agent(world))
        for name in ("mars", "hierarchical_grpo")
        for world in ("two_clocks", "noisy_plans")
    ],
    "own segment": [Without("mars2", "two_clocks", changed=two_clocks(subgoals_pay=True))],
    "effect": [Without("rtmc", "two_clocks", changed=only_both_pay())],
    "gains": [Without("igpo", "early_end", changed=ends(losses_go_on=True))],
    "branches": [
        *(
            Without(name, world, shape=EVERYWHERE, setting=Setting(turns=80_000))
            for name in ("spo", "treerpo", "c3")
            for world in ("two_clocks", "two_agents")
        ),
        Without("spo", "irrelevant", shape=Shape(2, {2: 2, 5: 2})),
    ],
    "leaves": [
        Without("tree_diff", world, shape="chains")
        for world in ("decisive", "delayed", "two_clocks", "maze", "noisy_plans", "early_end")
    ],
    "discount": [Without("hgpo", "early_end", {"gamma": 1.0})],
    "mean reward": [Without("mars", "early_end", {"reward_norm": "none", "whiten_rewards": False})],
    "understood": [
        Without("spa_rl_outcome", "horizon", {"grounded_weight": 0.0}),
        Without("spa_rl_outcome", "stochastic", {"grounded_weight": 0.0}),
    ],
    "right": [Without("m_grpo", "irrelevant", {"right_above": 0.9})],
    "joint context": [
        Without("magrpo", "two_clocks", shape=Shape(4, {2: 4})),
        Without("magrpo", "two_agents", shape=Shape(2, {1: 2, 3: 2})),
    ],
    "lone executions": [Without("himac", "two_clocks", {"micro_group": "group"})],
    "later plan": [
        Without("himac@nested+alternating", "two_clocks", changed=later_plans_of_the_executor(), setting=SHORT)
    ],
    "best trial": [Without("himac@nested", "early_end", shape={"select": "random"}, setting=SHORT)],
    "noise": [Without("c3", "early_end", setting=Setting(turns=80_000))],
    "frozen": [Without("coda_peco+bottom_up", "two_clocks", schedule={"steps": (100,)})],
}


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(
            case,
            id=f"{cause}-{case.name}-{case.world}",
            marks=[pytest.mark.slow] if "@" in case.name else [],
        )
        for cause, cases in CASES.items()
        for case in cases
    ],
)
def test_without_its_cause_a_method_learns(case):
    made = method(case.name, HOST, case.options)
    if isinstance(case.shape, str):
        made = method(f"{case.name}@{case.shape}", HOST, case.options)
    elif isinstance(case.shape, dict):
        made = replace(made, shape=replace(made.shape, options=build_options(made.shape.spec, case.shape)))
    elif case.shape is not None:
        made = replace(made, shape=case.shape)
    if case.schedule:
        spec = HOST.spec("schedule", case.name.rpartition("+")[2])
        made = replace(made, schedule=lambda: spec.factory(build_options(spec, case.schedule)))
    found = learn(case.changed or WORLDS[case.world], made, 1, case.setting).regret[-1]
    assert found <= LEARNS


@pytest.mark.parametrize("name", FIRST)
def test_who_keeps_the_first_to_end_keeps_those_that_stop_at_once(name):
    """At a policy that stops half of the time; where all episodes are equally long, half of the kept ones do."""
    shares = []
    for world in (WORLDS["early_end"], ends(equally_long=True)):
        policy = world.policy(np.zeros(world.legal.shape))
        made = method(name, HOST)
        batch = play_sampled(world, policy, 16, made.shape, np.random.default_rng(0), Phase("joint"))
        roots = batch.table.step_turn[np.unique(batch.table.step_episode, return_index=True)[1]]
        shares.append((batch.action[roots] == 0).mean())
    assert shares[0] > 0.75 and abs(shares[1] - 0.5) < 0.15


def cells():
    """What does not learn, or only in part, as it was measured."""
    return {
        cell: summary
        for part in ("summaries", "samplers")
        for cell, summary in study.stored(part=part).items()
        if summary.verdict != "learns"
    }


def test_whatever_does_not_learn_has_a_cause_with_a_test():
    found = {cell: cause(*cell) for cell in cells()}
    assert found and not [cell for cell, known in found.items() if known is None]
    shown = {(case.name, case.world): known for known, cases in CASES.items() for case in cases}
    shown |= {(name, "early_end"): "first" for name in FIRST}
    assert set(found.values()) == set(CAUSES) == {*shown.values(), BUDGET}
    assert shown == {cell: found.get(cell) for cell in shown}, "each test has a cell that does not learn"


def test_more_turns_are_enough_where_the_budget_is_the_cause():
    longer = study.stored(part="longer")
    assert set(longer) == {cell for cell in cells() if cause(*cell) == BUDGET}
    assert all(summary.verdict == "learns" for summary in longer.values())


def test_the_second_plan_of_an_episode_is_trained_in_no_phase_of_nested_and_alternating():
    world = WORLDS["two_clocks"]
    steps = Steps(world, method("himac@nested+alternating", HOST), 4, 0)
    policy = world.policy(np.random.default_rng(0).normal(size=world.legal.shape))
    trained, seen = set(), set()
    for _ in range(6):
        batch, _ = steps.next(policy, "token")
        plans, turn = world.plans[batch.state], batch.table["turn"]
        seen |= set(turn[plans].tolist())
        trained |= set(turn[plans & batch.table["trained"]].tolist())
    assert seen == {0, 3} and trained == {0}
