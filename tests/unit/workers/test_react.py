"""ReAct's turns: their tags, and what a wrong format costs."""

from __future__ import annotations

import asyncio

import pytest

from tests.fixtures.corridor import Corridor
from verl_hier.graph import RolloutGraph, build_table
from verl_hier.host.specs import NoOptions
from verl_hier.testing import credit_of
from verl_hier.testing.builtin import estimator
from verl_hier.testing.rollout import roll_out_scripted
from verl_hier_plugins.samplers.independent import Independent
from verl_hier_plugins.workers.react import ReactOptions, hier_workers

RIGHT = "<think>on</think><action>right</action>"
SAID = [RIGHT, "<action>right</action>", "right", RIGHT]


def roll(said: list[str], **options: object) -> RolloutGraph:
    turns = iter(said)
    graph, _ = asyncio.run(
        roll_out_scripted(
            environment=lambda: Corridor(3),
            worker=hier_workers(),
            options=ReactOptions(action_tag="action", history=2, **options),  # type: ignore[arg-type]
            sampler=Independent(NoOptions()),
            answer=lambda prompt, sampling: next(turns),
            n=1,
        )
    )
    return graph


def test_the_format_is_a_column_and_an_action_is_taken_without_the_other_tags() -> None:
    plain, strict = roll(SAID), roll(SAID, required_tags=("think",))
    assert [node.extra["format"] for node in plain.nodes] == [1, 1, 0, 1]
    assert [node.extra["format"] for node in strict.nodes] == [1, 0, 0, 1]
    for graph in (plain, strict):
        assert [node.valid for node in graph.nodes] == [True, True, False, True]
        assert graph.episodes[0].success and graph.episodes[0].ret == pytest.approx(0.9)
    assert "format" in hier_workers().provides and build_table([strict])["format"].tolist() == [1, 0, 0, 1]


def test_a_penalty_of_the_worker_is_in_the_return_and_one_of_the_estimator_is_not() -> None:
    graph = roll(SAID, required_tags=("think",), format_penalty=0.25)
    assert graph.episodes[0].ret == pytest.approx(0.9 - 0.5)
    table = build_table([roll(SAID, required_tags=("think",))])
    assert table["episodes.return"].tolist() == pytest.approx([0.9])
    own = credit_of("grpo", table, format_penalty=0.25, weight_by="turn", scale="none")
    assert own.tolist() == pytest.approx([0.125, -0.125, -0.125, 0.125])
    assert estimator("grpo").options().format_penalty == 0
