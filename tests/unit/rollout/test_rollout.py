"""The episode machine: paths, contexts, forks, faults, limits, and what the samplers make of them."""

from __future__ import annotations

import random

import pytest

from tests.fixtures.corridor import Corridor
from verl_hier.errors import RolloutError
from verl_hier.graph import build_table, graph_rows
from verl_hier.host.specs import NoOptions
from verl_hier.rollout import Limits, Sampler, Worker
from verl_hier.testing.rollout import roll_out_scripted
from verl_hier_plugins.samplers.independent import Independent
from verl_hier_plugins.samplers.nested import Nested, NestedOptions
from verl_hier_plugins.workers.planner_executor import PlannerExecutorOptions, hier_workers, parse_blueprint
from verl_hier_plugins.workers.react import React, ReactOptions, parse_action


def always_right(prompt: str, sampling) -> str:
    return "right"


def by_seed(prompt: str, sampling) -> str:
    """Random but a function of the seed; greedy turns go right."""
    if sampling.temperature == 0:
        return "right"
    return "right" if random.Random(sampling.seed).random() < 0.7 else "left"


def plans(prompt: str, sampling) -> str:
    if prompt.startswith("plan"):
        return "go ; go on" if (sampling.seed or 0) % 2 else "go"
    return by_seed(prompt, sampling)


def react(**options):
    return lambda: React(ReactOptions(**options))


def planner(**options):
    return {"worker": hier_workers(), "options": PlannerExecutorOptions(**options)}


def independent():
    return Independent(NoOptions())


def everything(node) -> bool:
    return True


def test_react_merges_its_turns_into_one_row(run):
    graph, policy = run(
        roll_out_scripted(environment=Corridor, worker=react(), sampler=independent(), answer=always_right, n=2)
    )
    assert [e.status for e in graph.episodes] == ["finished", "finished"]
    assert [e.ret for e in graph.episodes] == [1.0, 1.0]
    rows = graph_rows(graph, everything)
    assert [len(row.nodes) for row in rows] == [3, 3]
    for row in rows:
        last = graph.nodes[row.nodes[-1]]
        assert row.prompt + row.response == graph.prompt(last.id) + last.action
        said = [t for t, m in zip(row.response, row.mask, strict=True) if m]
        assert said == [t for i in row.nodes for t in graph.nodes[i].action]
    assert sorted(policy.prompts) == sorted(graph.prompt(n.id) for n in graph.nodes)


def test_window_makes_a_row_a_turn(run):
    graph, _ = run(
        roll_out_scripted(
            environment=Corridor, worker=react(history=1), sampler=independent(), answer=always_right, n=1
        )
    )
    assert [len(row.nodes) for row in graph_rows(graph, everything)] == [1, 1, 1]


def test_planner_executor_rows_roles_and_plans(run):
    cast = planner(subgoal_turns=2)
    graph, _ = run(roll_out_scripted(environment=Corridor, **cast, sampler=independent(), answer=plans, n=6))
    for episode in graph.complete():
        path = [graph.nodes[i] for i in graph.path(episode.id)]
        assert [n.level for n in path] == [0] + [1] * (len(path) - 1)
        assert all(n.plan == path[0].id for n in path[1:])
        rows = [r for r in graph_rows(graph, everything) if r.episode == episode.id]
        segments = {n.segment for n in path[1:]}
        assert len(rows) == 1 + len(segments)
        assert sum(sum(r.mask) for r in rows) == sum(len(n.action) for n in path)


def test_sub_done_ends_a_subgoal_without_touching_the_world(run):
    def answer(prompt, sampling):
        return "one ; two" if prompt.startswith("plan") else "<sub_done>"

    graph, _ = run(roll_out_scripted(environment=Corridor, **planner(), sampler=independent(), answer=answer, n=1))
    assert [n.segment for n in graph.nodes] == [0, 0, 1]
    assert graph.counts.get("environment_calls", 0) == 0
    assert graph.episodes[0].status == "truncated"


class ForkEverywhere(Sampler):
    """One chain, then a fork after each of its turns."""

    async def sample(self, rollout):
        trunk = await rollout.start().run()
        for shared in range(len(trunk.path) + 1):
            await (await trunk.fork(after=shared, why="test")).run()


def test_forks_share_their_prefix_and_the_tree_is_repeatable(run):
    def once():
        graph, _ = run(
            roll_out_scripted(
                environment=lambda: Corridor(4), worker=react(), sampler=ForkEverywhere(), answer=by_seed, seed=5
            )
        )
        return graph

    graph = once()
    trunk = graph.path(0)
    for episode in graph.episodes[1:]:
        assert graph.path(episode.id)[: episode.shared] == trunk[: episode.shared]
        assert episode.status == "finished"
    assert graph.counts["forks"] == len(trunk) + 1
    again = once()
    assert again.to_dict() == graph.to_dict()


def test_shared_turns_are_trained_once_or_in_every_row(run):
    graph, _ = run(
        roll_out_scripted(
            environment=lambda: Corridor(4), worker=react(), sampler=ForkEverywhere(), answer=by_seed, seed=5
        )
    )
    unique = sum(len(n.action) for n in graph.nodes)
    assert sum(sum(row.mask) for row in graph_rows(graph, everything, "once")) == unique
    leaves = sum(len(graph.nodes[i].action) for e in graph.complete() for i in graph.path(e.id))
    assert sum(sum(row.mask) for row in graph_rows(graph, everything, "repeat")) == leaves


def test_nested_tries_plans_greedily_and_executes_the_best(run):
    graph, _ = run(
        roll_out_scripted(
            environment=Corridor,
            **planner(subgoal_turns=2),
            sampler=Nested(NestedOptions(plans=4)),
            answer=plans,
            n=3,
        )
    )
    trials, executions = graph.episodes[:4], graph.episodes[4:]
    assert [e.trained for e in graph.episodes] == [False] * 4 + [True] * 3
    best = max(trials, key=lambda e: e.ret)
    assert {e.source for e in executions} == {best.id}
    plan = graph.path(best.id)[0]
    assert all(graph.path(e.id)[0] == plan for e in executions)
    for trial in trials:
        assert [graph.nodes[i].trained for i in graph.path(trial.id)] == [True] + [False] * (
            len(graph.path(trial.id)) - 1
        )
    table = build_table([graph])
    level = table["level"]
    assert table["trained"][level == 0].all()
    assert (table["episodes.trained"]).sum() == 3


def test_a_penalty_is_charged_once_however_often_its_turn_is_shared(run):
    graph, _ = run(
        roll_out_scripted(
            environment=Corridor,
            **planner(plan_penalty=0.1),
            sampler=Nested(NestedOptions(plans=2)),
            answer=lambda prompt, sampling: ";",
            n=3,
        )
    )
    assert [e.ret for e in graph.episodes] == [-0.1] * 5


@pytest.mark.parametrize("levels, expected", [({0}, [False] * 4), ({1}, [False] * 4 + [True] * 3)])
def test_nested_makes_only_what_the_phase_trains(run, levels, expected):
    graph, _ = run(
        roll_out_scripted(
            environment=Corridor,
            **planner(),
            sampler=Nested(NestedOptions(plans=4)),
            answer=plans,
            n=3,
            levels=frozenset(levels),
        )
    )
    assert [e.trained for e in graph.episodes] == expected
    assert not graph.short


def test_a_broken_world_costs_its_own_episode(run):
    graph, _ = run(
        roll_out_scripted(
            environment=lambda: Corridor(3, break_at=2), worker=react(), sampler=independent(), answer=by_seed, n=8
        )
    )
    failed = [e for e in graph.episodes if e.status == "failed"]
    assert failed and graph.counts["failed_raised"] == len(failed)
    assert all("the floor broke" in (e.error or "") for e in failed)
    assert graph.short
    ids = {e.id for e in graph.complete()}
    assert {row.episode for row in graph_rows(graph, everything)} <= ids


def test_limits_truncate(run):
    graph, _ = run(
        roll_out_scripted(
            environment=Corridor,
            worker=react(),
            sampler=independent(),
            answer=lambda p, s: "left",
            n=1,
            limits=Limits(max_turns=4),
        )
    )
    assert [e.status for e in graph.episodes] == ["truncated"]
    assert len(graph.nodes) == 4 and graph.nodes[-1].truncated
    graph, _ = run(
        roll_out_scripted(
            environment=Corridor,
            worker=react(),
            sampler=independent(),
            answer=lambda p, s: "left",
            n=1,
            limits=Limits(context_tokens=20),
        )
    )
    assert all(n.prompt_tokens < 20 for n in graph.nodes)
    assert graph.episodes[0].error == "context_tokens"


class Broken(Worker):
    async def run(self, episode):
        await episode.reset()
        raise KeyError("oops")


class Forgetful(Worker):
    """Reads the clock, so to speak: does another thing each time it runs."""

    runs = 0

    async def run(self, episode):
        Forgetful.runs += 1
        step = await episode.reset()
        context = episode.context("agent").observe(f"run {Forgetful.runs} {step.text}")
        while not step.done:
            turn = await episode.generate(context)
            step = await episode.act(turn.text)
            context.observe(step.text)


def test_a_broken_worker_stops_the_run_with_its_name(run):
    with pytest.raises(RolloutError, match="worker Broken raised KeyError"):
        run(roll_out_scripted(environment=Corridor, worker=Broken, sampler=independent(), answer=always_right))


def test_a_worker_that_cannot_be_replayed_is_named(run):
    with pytest.raises(RolloutError, match="worker Forgetful built another prompt"):
        run(roll_out_scripted(environment=Corridor, worker=Forgetful, sampler=ForkEverywhere(), answer=always_right))


def test_parsers():
    assert parse_action(" go left ", None) == "go left"
    assert parse_action("<action>a</action> then <action>b</action>", "action") == "b"
    assert parse_action("no tag", "action") is None
    assert parse_blueprint("1. find apple\n2. heat it ; - put it", ";", 5) == ["find apple", "heat it", "put it"]
    assert parse_blueprint(" ; \n", ";", 5) == []
    assert parse_blueprint("a;b;c", ";", 2) == ["a", "b"]
