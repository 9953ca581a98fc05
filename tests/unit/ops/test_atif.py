"""Rollouts as ATIF: every trajectory is one by the models of the format's own package, and nothing is lost or added."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.fixtures import rollout_graphs
from verl_hier.errors import GraphError
from verl_hier.graph import write_graphs
from verl_hier.ops.exchange import export_atif
from verl_hier.ops.exchange.atif import trajectories


@pytest.mark.parametrize("kind", rollout_graphs.ROLLED_OUT)
def test_the_format_s_own_models_take_them(kind: str, tmp_path: Path) -> None:
    atif = pytest.importorskip("atif", reason="needs the package atif, and so Python 3.11")
    graph = rollout_graphs.ROLLED_OUT[kind]()
    write_graphs(tmp_path / "graphs.jsonl", [graph])
    assert export_atif(tmp_path / "graphs.jsonl", tmp_path / "out.jsonl") == len(list(graph.complete()))
    for line in (tmp_path / "out.jsonl").read_text().splitlines():
        atif.Trajectory.model_validate_json(line)


@pytest.mark.parametrize("kind", rollout_graphs.ROLLED_OUT)
def test_each_turn_of_an_episode_is_one_step_with_its_tokens(kind: str) -> None:
    graph = rollout_graphs.ROLLED_OUT[kind]()
    for episode, whole in zip(graph.complete(), trajectories(graph), strict=True):
        own = [step for step in agent_steps(whole) if not step.get("is_copied_context")]
        nodes = [graph.nodes[number] for number in graph.path(episode.id)]
        assert sorted(step["extra"]["node"] for step in own) == [node.id for node in nodes]
        assert sum(step["metrics"]["completion_tokens"] for step in own) == sum(len(node.action) for node in nodes)
        assert sum(step["extra"]["reward"] for step in own) == pytest.approx(episode.ret)
        texts = {step["extra"]["node"]: step["message"] for step in own}
        assert texts == {node.id: node.text for node in nodes}


def test_executors_are_sub_agents_to_which_their_plan_refers() -> None:
    graph = rollout_graphs.hierarchical()
    whole = next(trajectories(graph))
    inside = whole["subagent_trajectories"]
    assert {each["agent"]["extra"]["role"] for each in inside} == {"executor"}
    asked = [
        reference["trajectory_id"]
        for step in whole["steps"]
        for result in step.get("observation", {}).get("results", ())
        for reference in result["subagent_trajectory_ref"]
    ]
    assert asked == [each["trajectory_id"] for each in inside] and len(set(asked)) == len(asked) > 0


def test_what_was_sampled_in_pieces_is_one_step() -> None:
    graph = rollout_graphs.flat()
    turn = next(node for node in graph.nodes if len(node.action) > 1)
    text, action = turn.text, [*turn.action]
    graph.split(turn, 1)
    steps = [step for whole in trajectories(graph) for step in agent_steps(whole)]
    (whole,) = [step for step in steps if step["extra"]["node"] == turn.id]
    assert whole["metrics"]["completion_token_ids"] == action and whole["message"] == text


def test_another_suffix_is_refused(tmp_path: Path) -> None:
    with pytest.raises(GraphError, match=r"use \.jsonl"):
        export_atif(rollout_graphs.GOLDEN, tmp_path / "out.parquet")


def agent_steps(whole: dict) -> list[dict]:
    every = [whole, *whole.get("subagent_trajectories", ())]
    steps = [step for each in every for step in each["steps"]]
    assert json.loads(json.dumps(steps)) == steps
    return [step for step in steps if step["source"] == "agent"]
