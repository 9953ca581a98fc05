"""The dual loop: where failures go, who is grouped with whom, and the bug-reproduction world under it."""

from __future__ import annotations

import asyncio
import random

import numpy as np
import pytest

from verl_hier.environments.base import Environment, StepResult
from verl_hier.graph import build_table, graph_rows
from verl_hier.host.specs import NoOptions
from verl_hier.testing.rollout import WordTokenizer, roll_out_scripted
from verl_hier_plugins.estimators.dual_loop import DualLoopCreditOptions, advantage
from verl_hier_plugins.samplers.independent import Independent
from verl_hier_plugins.workers.dual_loop import DualLoopOptions, hier_workers


class Lock(Environment):
    """Opens to `turn key`; another turn is a slip, anything else a wrong plan."""

    def reset(self, task, seed):
        return StepResult("locked", anchor="locked")

    def step(self, action):
        won = action == "turn key"
        failure = "" if won else "implementation" if action.startswith("turn") else "strategy"
        return StepResult(
            "open" if won else f"still locked : {failure}", float(won), won, info={"won": won, "failure": failure}
        )


def roll(said, n=1, environment=Lock, **options):
    turns = iter(()) if callable(said) else iter(said)
    return asyncio.run(
        roll_out_scripted(
            environment=environment,
            worker=hier_workers(),
            options=DualLoopOptions(**options),
            sampler=Independent(NoOptions()),
            answer=(lambda prompt, sampling: said(prompt, sampling)) if callable(said) else lambda p, s: next(turns),
            n=n,
        )
    )


def test_a_slip_is_repaired_and_a_wrong_plan_replaced():
    graph, policy = roll(["push", "push door", "use the key", "turn left", "turn key"])
    assert [n.role for n in graph.nodes] == ["planner", "executor", "planner", "executor", "executor"]
    assert [n.segment for n in graph.nodes] == [0, 0, 1, 1, 1] and [n.plan for n in graph.nodes] == [-1, 0, -1, 2, 2]
    assert [n.extra.get("route") for n in graph.nodes] == [None, 2, None, 1, 0]
    assert [n.extra.get("attempt") for n in graph.nodes] == [None, 0, None, 0, 1]
    rows = graph_rows(graph, lambda node: True)
    assert [[graph.nodes[i].role for i in row.nodes] for row in rows] == [
        ["planner", "planner"],
        ["executor"],
        ["executor", "executor"],
    ]
    repair = policy.tokenizer.decode(policy.prompts[4])
    assert "use the key" in repair and "implementation" in repair and "push" not in repair
    assert graph.episodes[0].success


def test_loops_are_bounded():
    graph, _ = roll(["p", *["turn"] * 2, "q", *["turn"] * 2], tries=2, plans=2)
    assert len(graph.nodes) == 6 and graph.episodes[0].status == "truncated"
    graph, _ = roll(["p", "push", "q", "push"], tries=5, plans=2)
    assert len(graph.nodes) == 4


def test_a_refiner_may_route():
    said = ["p", "turn left", "this is strategic", "q", "push", "tactical : try again", "turn key"]
    graph, _ = roll(said, router="refiner")
    roles = ["planner", "executor", "refiner", "planner", "executor", "refiner", "executor"]
    assert [n.role for n in graph.nodes] == roles and graph.episodes[0].success
    graph, _ = roll(["p", "turn left", "who knows", "turn key"], router="refiner")
    assert graph.nodes[2].extra["failure"] == "no_route"


def test_credit_by_hand():
    """Two episodes: plan 0 fails at once, plan 1 wins at its second try; plan 2 never wins in three tries."""
    said = {"first": ["a", "push", "b", "turn", "turn key"], "second": ["c", "turn", "turn", "turn"]}
    graphs = [roll(said[name], plans=2 if name == "first" else 1)[0] for name in said]
    table = build_table(graphs)
    table.turns["group"] = np.zeros(len(table), np.int64)
    credit = advantage(table, DualLoopCreditOptions(gamma=0.5, eps=0.0))
    level = np.asarray(table["level"])
    scores = np.array([0.0, 1.0, 0.0])
    assert credit[level == 0] == pytest.approx((scores - scores.mean()) / scores.std(ddof=1))
    tries = np.array([0.0, 0.5, 1.0, 0.0, 0.0, 0.0])  # push; turn, turn key; turn, turn, turn
    found = credit[level == 1]
    assert found[0] == pytest.approx((tries[0] - tries.mean()) / tries.std(ddof=1)), "a lone try: over the task"
    assert found[1:3] == pytest.approx([-np.sqrt(0.5), np.sqrt(0.5)]) and (found[3:] == 0).all()
    strict = advantage(table, DualLoopCreditOptions(gamma=0.5, eps=0.0, compare_lone_tries=False))
    assert strict[level == 1][0] == 0


def test_hostile_text_is_counted_and_never_ends_a_run():
    chance = random.Random(3)
    parts = ["<act>", "</act>", "turn", "key", "strategic", "é", "<", " ", "x" * 1000]

    def babble(prompt, sampling):
        return "".join(chance.choice(parts) for _ in range(chance.randint(0, 6)))

    failures = set()
    for _ in range(100):
        graph, _ = roll(babble, n=3, router="refiner", action_tag="act")
        assert all(e.status in ("finished", "truncated") for e in graph.episodes)
        failures |= {n.extra["failure"] for n in graph.nodes if "failure" in n.extra}
    assert {"no_action_tag", "no_route", "empty_plan"} <= failures


class Verbatim(WordTokenizer):
    """One token a character, so that text comes back as it was."""

    def encode(self, text, add_special_tokens=True):
        return [self._ids.setdefault(sign, len(self._ids)) for sign in text]

    def decode(self, token_ids, skip_special_tokens=False):
        words = list(self._ids)
        return "".join(words[i] for i in token_ids)


def test_it_reproduces_a_bug():
    """The world it is shipped with, for real: functions in a sandbox, stages, a plan and a slip."""
    from verl_hier_plugins.environments.bug_reproduction.environment import build
    from verl_hier_plugins.environments.bug_reproduction.options import BugReproductionOptions
    from verl_hier_plugins.environments.bug_reproduction.tasks import tasks

    options = BugReproductionOptions(pool=8, validation=4)
    (task, *_) = tasks(options, "train")
    world = build(options)
    world.reset(task, 0)
    expert = world.expert(random.Random(0))
    test = expert.advise(0)
    turns = iter([expert.subgoals[0], "test f(", test])
    graph, _ = asyncio.run(
        roll_out_scripted(
            environment=lambda: build(options),
            worker=hier_workers(),
            options=DualLoopOptions(),
            sampler=Independent(NoOptions()),
            answer=lambda prompt, sampling: next(turns),
            task=task,
            n=1,
            tokenizer=Verbatim(),
        )
    )
    assert [n.role for n in graph.nodes] == ["planner", "executor", "executor"]
    assert graph.nodes[1].extra["route"] == 1 and graph.episodes[0].success
