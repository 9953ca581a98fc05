"""Planted errors: the label is true in the world, the form is that of Who&When, and playing again finds it."""

from __future__ import annotations

import asyncio
import json

import pytest

from tests.unit.ops.test_exchange_commands import verl_hier  # noqa: F401 - the command line in this process
from tests.unit.ops.test_lessons import rollout
from verl_hier.errors import RecipeError
from verl_hier.graph import write_graphs
from verl_hier.graph.choices import on_path, turns_of
from verl_hier.ops.exchange.who_when import accuracy, case, history
from verl_hier.ops.failures import Recorded, measure, plant, together
from verl_hier.recipe.composed import ComposedRecipe

RECIPE = "grpo_sokoban"


@pytest.fixture(scope="module")
def planted():
    """(player, cases, shares) of a small world."""
    player = Recorded(ComposedRecipe.named(RECIPE))

    async def made():
        cases = [case async for case in plant(player, 4, seed=3, others=4)]
        return cases, await measure(player, cases)

    cases, shares = asyncio.run(made())
    return player, cases, shares


def test_what_is_planted_loses_and_what_it_replaced_wins(planted):
    player, cases, _ = planted
    for each in cases:
        path = on_path(each.graph, 0, turns_of(each.graph))
        at = [turn.node for turn in path].index(each.node)
        texts = [turn.text for turn in path]
        assert texts[at] != each.instead and not each.graph.episodes[0].success
        again = asyncio.run(player.say(each.request, texts))
        assert not again.episodes[0].success and [node.text for node in again.nodes] == texts
        label = each.fields()
        entry = label["history"][label["mistake_step"]]
        assert (entry["name"], entry["content"]) == (label["mistake_agent"], texts[at])


def test_playing_again_finds_more_than_the_last_turn_and_than_chance(planted):
    _, cases, shares = planted
    assert shares["replay"]["step"] >= 0.75 > shares["chance"]["step"]
    assert shares["last turn"]["named"] == 1.0 and set(shares) == {"chance", "last turn", "the others", "replay"}
    again = asyncio.run(first(planted[0], 4))
    assert [each.fields() for each in again] == [each.fields() for each in cases]


async def first(player, count):
    return [case async for case in plant(player, count, seed=3, others=4)]


def test_the_form_of_a_case(tmp_path):
    graph = rollout(tmp_path)
    entries, places = history(graph, 1)
    assert entries == [
        {"content": "start", "name": "world", "role": "user"},
        {"content": "a", "name": "agent", "role": "assistant"},
        {"content": "after a", "name": "world", "role": "user"},
        {"content": "c", "name": "agent", "role": "assistant"},
    ]
    found = case(graph, 1, graph.path(1)[1], "because")
    assert found["history"] == entries and (found["mistake_agent"], found["mistake_step"]) == ("agent", 3)
    assert not found["is_correct"] and found["question"] == "start" and [*places.values()] == [1, 3]
    nobody = case(graph, 1, -1, "nothing tells")
    assert nobody["mistake_agent"] is nobody["mistake_step"] is None
    assert accuracy([(found, "agent", 3), (found, "agent", 1), (found, None, None)]) == {
        **{"agent": pytest.approx(2 / 3), "step": pytest.approx(1 / 3), "named": pytest.approx(2 / 3)},
    }


def test_attempts_of_several_rollouts_in_one(tmp_path):
    graph = rollout(tmp_path)
    whole = together([graph, graph])
    assert len(whole.nodes) == 2 * len(graph.nodes) and [e.ret for e in whole.episodes] == [1.0, 0.0, 0.0, 0.0] * 2
    assert [turn.text for turn in on_path(whole, 5, turns_of(whole))] == ["a", "c"]


def test_the_commands(verl_hier, tmp_path, planted):  # noqa: F811
    write_graphs(tmp_path / "graphs.jsonl", [each.graph for each in planted[1]])
    for how in (("others",), ("replay", "--recipe", RECIPE)):
        out = tmp_path / f"{how[0]}.jsonl"
        code, said, _ = verl_hier("credit", tmp_path / "graphs.jsonl", "--blame", *how, "--out", out)
        cases = [json.loads(line) for line in out.read_text().splitlines()]
        assert code == 0 and said.startswith(f"{len(cases)} lost attempts; a turn that lost is named in ")
        assert f"{len(cases)} lines: {out}" in said and all(each["history"] for each in cases)
    code, said, _ = verl_hier("export", tmp_path / "graphs.jsonl", "--to", "states", "--out", tmp_path / "s.jsonl")
    states = [json.loads(line) for line in (tmp_path / "s.jsonl").read_text().splitlines()]
    assert code == 0 and said.startswith(f"{len(states)} lines: ")
    assert all(each["states"] and each["edges"] for each in states)


@pytest.mark.parametrize(
    "arguments, words",
    [
        (("--blame", "replay"), "name their recipe with --recipe"),
        (("--blame", "others", "--estimator", "grpo"), "leave --estimator, --compare and --set out"),
        ((), "or --blame others"),
    ],
)
def test_what_cannot_be_is_one_sentence(verl_hier, tmp_path, arguments, words):  # noqa: F811
    write_graphs(tmp_path / "graphs.jsonl", [rollout(tmp_path)])
    code, _, err = verl_hier("credit", tmp_path / "graphs.jsonl", *arguments)
    assert code == 2 and words in err.splitlines()[-1]


def test_a_world_whose_states_have_no_names_has_no_graph_of_them(verl_hier, tmp_path):  # noqa: F811
    write_graphs(tmp_path / "graphs.jsonl", [rollout(tmp_path)])
    code, _, err = verl_hier("export", tmp_path / "graphs.jsonl", "--to", "states", "--out", tmp_path / "s.jsonl")
    assert code == 2 and "has the name of a state" in err and not (tmp_path / "s.jsonl").exists()


def test_a_recipe_without_tasks_of_its_own_is_refused():
    with pytest.raises(RecipeError, match="no stored attempt can be played again"):
        Recorded(ComposedRecipe.named("tree_grpo_verl_tools"))


def test_what_eval_has_stored_is_read_by_all_of_them(verl_hier, tmp_path):  # noqa: F811
    graphs = tmp_path / "graphs.jsonl"
    assert verl_hier("eval", "expert", RECIPE, "--tasks", "3", "-n", "1", "--graphs", graphs)[0] == 0
    for to in ("sft", "states"):
        code, said, _ = verl_hier("export", graphs, "--to", to, "--out", tmp_path / f"{to}.jsonl")
        assert code == 0 and said.startswith("3 lines: ")
    code, said, _ = verl_hier("credit", graphs, "--blame", "others")
    assert code == 0 and said.startswith("0 lost attempts")
    code, _, err = verl_hier("export", graphs, "--to", "pairs", "--take", "errors", "--out", tmp_path / "pairs.jsonl")
    assert code == 2 and "holds no such row" in err  # the expert loses nothing
