"""RLVMR's turns: what kind of step each says it is, and which rules it keeps."""

from __future__ import annotations

import asyncio

import pytest

from tests.fixtures.corridor import Corridor
from verl_hier.environments.base import StepResult
from verl_hier.graph import RolloutGraph, build_table
from verl_hier.graph.nodes import Node
from verl_hier.host.specs import NoOptions
from verl_hier.rollout.transcript import EnvironmentCall, Transcript, TranscriptTurn
from verl_hier.testing import credit_of
from verl_hier.testing.rollout import roll_out_scripted
from verl_hier_plugins.samplers.independent import Independent
from verl_hier_plugins.workers.rlvmr import RLVMROptions, hier_workers, transcribe

SAID = [
    "<planning>far</planning><action>right</action>",
    "<explore>?</explore><action>right</action>",
    "<explore>?</explore><action>jump</action>",
    "<reflection>oh</reflection><action>jump</action>",
    "<reflection>oh</reflection><action>left</action>",
    "<monitor>on</monitor><action>right</action>",
    "<action>right</action>",
]


def roll(said: list[str], length: int = 4) -> RolloutGraph:
    turns = iter(said)
    graph, _ = asyncio.run(
        roll_out_scripted(
            environment=lambda: Corridor(length),
            worker=hier_workers(),
            options=RLVMROptions(action_tag="action"),
            sampler=Independent(NoOptions()),
            answer=lambda prompt, sampling: next(turns),
            n=1,
        )
    )
    return graph


def test_rules_reward_the_kinds_of_steps() -> None:
    graph = roll(SAID)
    assert graph.episodes[0].success
    assert [node.extra["tag"] for node in graph.nodes] == [0, 1, 1, 2, 2, 3, -1]
    # The plan is followed by success; `right` is not new; `jump` is; repeating it corrects nothing, `left` does.
    assert [node.extra["tag_reward"] for node in graph.nodes] == [1, 0, 1, 0, 1, 0, 0]
    assert [node.extra["format"] for node in graph.nodes] == [1, 1, 1, 1, 1, 1, 0]
    table = build_table([graph])
    assert {*hier_workers().provides} <= {*table.columns()}
    assert len(credit_of("rlvmr", table)) == len(SAID)


def test_a_plan_without_success_earns_nothing() -> None:
    graph = roll([SAID[0], *["<monitor></monitor><action>left</action>"] * 40], length=5)
    assert not graph.episodes[0].success and graph.nodes[0].extra["tag_reward"] == 0


def test_tags_have_to_differ() -> None:
    with pytest.raises(ValueError, match="four tags"):
        RLVMROptions(planning="monitor")


def test_episodes_of_a_planner_and_an_executor_are_tagged_by_the_rules() -> None:
    def called(segment: int, action: str, valid: bool = True) -> TranscriptTurn:
        node = Node(0, -1, -1, 0, "a", "a", 1, 0, segment, -1, [], [], [])
        return TranscriptTurn(node, action, (EnvironmentCall(action, StepResult("", valid=valid)),))

    plan = TranscriptTurn(Node(0, -1, -1, 0, "a", "a", 0, 0, 0, -1, [], [], []), "find key ; open door", ())
    acts = [("right", True), ("jump", False), ("left", True), ("right", True)]
    turns = [called(number > 1, action, valid) for number, (action, valid) in enumerate(acts)]
    transcript = Transcript("leave", StepResult("a hall"), (plan, *turns))
    assert transcribe(RLVMROptions(action_tag="action"), transcript) == [
        "<planning>find key ; open door</planning><action>right</action>",
        "<explore>find key</explore><action>jump</action>",
        "<reflection>open door</reflection><action>left</action>",
        "<monitor>open door</monitor><action>right</action>",
    ]
    with pytest.raises(ValueError, match="no_action_tag"):
        transcribe(RLVMROptions(), transcript)
