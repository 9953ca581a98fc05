"""Benchmarks of training: what the arms of the one on optimiser steps train, and the tables of results."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from verl_hier.graph import EpisodeRecord, Node, RolloutGraph
from verl_hier.ops.searched import SearchedTask
from verl_hier.recipe.checks.updates import step_of
from verl_hier.recipe.compose import compose
from verl_hier.recipe.composed import ComposedRecipe


@pytest.fixture
def updates(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "scripts" / "bench"))
    return importlib.import_module("updates")


@pytest.mark.slow
def test_the_arms_differ_in_nothing_but_optimiser_steps(updates):
    for name, method in updates.METHODS.items():
        recipes = [ComposedRecipe.of(compose(method.recipe, [override])) for override in method.arms().values()]
        several, one = (step_of(recipe) for recipe in recipes)
        assert one.optimiser_steps == (1, 1) and several.optimiser_steps[1] >= 8, name
        assert (several.tasks, several.episodes, several.rows) == (one.tasks, one.episodes, one.rows), name


def test_curves_count_the_tokens_before_each_step(updates):
    step = {"hier/episodes/success": 0.5, "actor/pg_clipfrac": 0.01, "hier/tokens/generated": 100.0}
    records = [{"val-core/x": 1.0}, {**step, "hier/update/steps": 8.0}, {**step, "hier/update/steps": 7.0}]
    curve = updates.curve_of(records)
    assert curve == [
        {"tokens": 0.0, "updates": 8.0, "success": 0.5, "clipped": 0.01},
        {"tokens": 100.0, "updates": 7.0, "success": 0.5, "clipped": 0.01},
    ]
    assert updates.spent(curve, 100) and not updates.spent(curve, 101) and not updates.spent([], 0)


def test_the_table_has_a_line_for_each_arm(updates):
    def curve(last):
        points = zip((0.2, last, last), (0.0, 0.02, 0.04), strict=True)
        return [{"tokens": 0.0, "updates": 8.0, "success": success, "clipped": clipped} for success, clipped in points]

    arms = list(updates.METHODS["arpo"].arms())
    runs = [{"method": "arpo", "arm": arm, "seed": s, "curve": curve(0.4 + s / 10)} for arm in arms for s in range(2)]
    lines = list(updates.table({"runs": runs}))
    assert (
        lines[2] == "| arpo | 8.0 (`steps: 8`) | 2 | 20 (20 to 20) | 45 (40 to 50) | 25 (20 to 30) | 2.0 (2.0 to 2.0) |"
    )
    assert len(lines) == 4 and "one step" in lines[3]


@pytest.fixture
def policies(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "scripts" / "bench"))
    return importlib.import_module("policies")


def test_the_forms_of_policies_differ_in_nothing_else(policies, byte_model):
    composed = {
        form: compose(policies.RECIPE, policies.overrides(form, byte_model, steps=3, tasks=8))
        for form in policies.FORMS
    }
    steps = {form: str(step_of(ComposedRecipe.of(config))) for form, config in composed.items()}
    assert len(set(steps.values())) == 1
    assert [config.hier.recipe.policies for config in composed.values()] == list(policies.FORMS)
    assert {config.hier.seed for config in composed.values()} == {0}


def test_memory_is_read_from_the_kernel_for_the_processes_of_a_run_alone(policies, monkeypatch):
    assert policies.pss("Rss: 9 kB\nPss:    12 kB\nPss_Dirty:  7 kB\n") == 12 * 1024 and policies.pss("") == 0
    monkeypatch.setenv(policies.MARK, "mine")
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        found, other = (list(policies.Watcher(run)._held()) for run in ("mine", "another"))
        process.communicate(b"\n")
    assert len(found) == 1 and found[0] > 2**20 and not other


def test_a_run_whose_memory_was_not_expected_is_named(policies):
    cost = policies.Cost("shared", 1.0, 0.25, 0.02, 31.4, 22, 4 * 2**30, 5 * 2**30)
    head, _, line = policies.table([cost])
    assert head.count("|") == line.count("|") and cost.off == pytest.approx(0.25) and cost.off > policies.LIMIT
    assert line.endswith("| 1.00 s | 0.25 s | 0.02 s | 31 s | 22 | 4.00 GiB | 5.00 GiB (+25 %) |")


def _answers(uid: str, shared: int, own: int, answers: str, right: str) -> SearchedTask:
    """A task with an episode for each of the answers: `shared` tokens that all have, and `own` ones of each."""
    place = {"context": -1, "agent": "a", "role": "a", "level": 0, "segment": 0, "plan": -1, "observation": [1]}
    nodes = [Node(0, -1, episode=0, turn=0, action=[1] * shared, logprobs=[], **place)] if shared else []
    records = []
    for number in range(len(answers)):
        nodes.append(Node(len(nodes), 0 if shared else -1, episode=number, turn=bool(shared), action=[1] * own,
                          logprobs=[], **place))  # fmt: skip
        records.append(EpisodeRecord(number, leaf=nodes[-1].id, status="finished"))
    graph = RolloutGraph({"uid": uid}, nodes, records, counts={"environment_calls": len(nodes), "replayed_calls": 2})
    return SearchedTask(graph, records, [float(answer == right) for answer in answers], list(answers))


def test_trees_are_compared_with_as_many_independent_episodes_as_they_cost(monkeypatch):
    """A tree of 10 + 4 x 5 tokens and 5 calls, against episodes of 10 tokens and a call each: 3 and 5 of them."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "scripts" / "bench"))
    search = importlib.import_module("search")
    tree = [_answers("a", 10, 5, "xxxx", "x"), _answers("b", 10, 5, "yyxx", "x")]
    alone = [_answers("a", 0, 10, "xyzuvw", "x"), _answers("b", 0, 10, "xxxyyy", "x")]
    found = search.compared(tree, alone, "vote")
    assert found["tree"] == {
        "success": 0.75,
        "leaves": 4.0,
        "tokens": 30.0,
        "calls": 5.0,
        "calls and repeated calls": 7.0,
    }
    assert found["tokens"]["episodes"] == pytest.approx(3.0) and found["calls"]["episodes"] == pytest.approx(5.0)
    assert found["calls and repeated calls"]["episodes"] == pytest.approx(7 / (1 + 2 / 6))
    assert found["tokens"]["differences"] == pytest.approx([1 - 1 / 6, 0.0])
    row = search.pooled("w", 4, [found, found])
    assert row["tokens"]["difference"] == pytest.approx((1 - 1 / 6) / 2)
    assert len(search.table([row])) == 3 and "| w | 4 |" in search.table([row])[2]
