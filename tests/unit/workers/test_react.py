"""ReAct's turns: their tags, and what a wrong format costs."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from tests.fixtures.corridor import Corridor
from verl_hier.environments.base import StepResult
from verl_hier.errors import RecipeError
from verl_hier.graph import RolloutGraph, build_table, graph_rows
from verl_hier.host.options import build_options
from verl_hier.host.specs import NoOptions
from verl_hier.rollout.transcript import EnvironmentCall, Transcript, TranscriptTurn
from verl_hier.testing import credit_of
from verl_hier.testing.builtin import estimator
from verl_hier.testing.rollout import CharacterTokenizer, roll_out_scripted
from verl_hier_plugins.samplers.independent import Independent
from verl_hier_plugins.workers.react import ReactOptions, hier_workers, transcribe

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


# ---- a report --------------------------------------------------------------------------------------------------------

REPORTING = {
    "history": 1,
    "report_tag": "report",
    "prompt": "go | {observation} |",
    "window_prompt": "go | {report} | {action} | {observation} |",
}


def reported(said: list[str], **options: object) -> tuple[RolloutGraph, list[str]]:
    turns = iter(said)
    graph, policy = asyncio.run(
        roll_out_scripted(
            environment=lambda: Corridor(3),
            worker=hier_workers(),
            options=build_options(hier_workers(), {"action_tag": "action", **REPORTING, **options}),
            sampler=Independent(NoOptions()),
            answer=lambda prompt, sampling: next(turns),
            n=1,
            tokenizer=CharacterTokenizer(),
        )
    )
    return graph, [policy.tokenizer.decode(graph.prompt(node.id)).removesuffix("<act>") for node in graph.nodes]


def test_each_turn_begins_anew_from_the_report_and_what_was_done_last() -> None:
    one, two = "<report>one step</report>", "<report> two steps </report>"
    graph, prompts = reported([f"{one}{RIGHT}", RIGHT, f"{two}<action>left</action>", RIGHT])
    assert prompts == [
        "go | at 0 |",
        "go | one step | right | at 1 |",
        "go | one step | right | at 2 |",  # a turn without a report leaves the last one
        "go | two steps | left | at 2 |",
    ]
    assert [node.extra["format"] for node in graph.nodes] == [1, 0, 1, 0]
    assert len(graph_rows(graph, lambda node: True)) == 4, "each round is a row"
    assert [node.valid for node in graph.nodes] == [True, True, False, True] and graph.episodes[0].success


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"history": 0}, "report_tag: a report is read where the context begins anew"),
        ({"window_prompt": "{observation}"}, "report_tag: a report is read"),
        ({"action_tag": None}, "report_tag: a turn has a report and an action"),
        ({"action_tag": "report"}, "set action_tag to another tag"),
    ],
)
def test_what_a_report_needs(options: dict[str, object], says: str) -> None:
    with pytest.raises(RecipeError, match=says):
        build_options(hier_workers(), {"action_tag": "action", **REPORTING, **options})


def test_what_a_cold_start_shows_has_goals_that_are_done_and_what_was_found() -> None:
    options = build_options(hier_workers(), {"action_tag": "action", **REPORTING})
    plan = SimpleNamespace(level=0, segment=0)
    first, second = (SimpleNamespace(level=1, segment=number) for number in range(2))
    seen = [("go to desk", "you see apple 3"), ("take apple 3", "you hold it"), ("heat apple 3", "it is hot")]
    calls = [EnvironmentCall(action, StepResult(text)) for action, text in seen]
    turns = (
        TranscriptTurn(plan, "find apple ; heat apple", ()),  # type: ignore[arg-type]
        TranscriptTurn(first, "", (calls[0], calls[1])),  # type: ignore[arg-type]
        TranscriptTurn(second, "", (calls[2],)),  # type: ignore[arg-type]
    )
    assert transcribe(options, Transcript("heat the apple", StepResult("a room"), turns)) == [
        "<report>nothing</report><action>go to desk</action>",
        "<report>3</report><action>take apple 3</action>",
        "<report>3 ; find apple</report><action>heat apple 3</action>",
    ]
    assert hier_workers().is_transcribed(options) and not hier_workers().is_transcribed(ReactOptions())
    with pytest.raises(ValueError, match="no_action"):
        transcribe(options, Transcript("x", StepResult("a room"), ()))
