"""Episodes of a planner and its executor as turns of a lead and its agents."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from tests.fixtures.planner_transcript import planner_transcript
from verl_hier.environments.base import StepResult
from verl_hier.rollout.transcript import EnvironmentCall, Transcript, TranscriptTurn
from verl_hier_plugins.workers.team import RoleOptions, TeamOptions, TopologyOptions, hier_workers

SPEC = hier_workers()


def team(answer: str = "{content}", rounds: int = 4, **searcher: Any) -> TeamOptions:
    agent = {"action": "go {content}", "actions": ("right",), "message_tag": "result", "turns": 3} | searcher
    roles = {"lead": RoleOptions(), "runner": RoleOptions(level=1, **agent)}
    return TeamOptions(roles, TopologyOptions("lead", rounds=rounds), answer_action=answer)


def test_subgoals_become_tasks_and_observations_reports() -> None:
    """In the words of the search environment: what the second step needs is what the first one has found."""
    steps = [
        (0, "search founder melux", "melux : a company with founder dilil and seat tari."),
        (0, "web founder melux", "melux : founder dilil."),
        (1, "search mentor dilil", "dilil : a person with mentor huram."),
        (2, "answer huram", ""),
    ]
    node = planner_transcript().turns[0].node
    turns = tuple(
        TranscriptTurn(dataclasses.replace(node, segment=segment), action, (EnvironmentCall(action, StepResult(seen)),))
        for segment, action, seen in steps
    )
    told = SPEC.transcribe(
        team("answer {content}", action="{content}", actions=("search", "web")),
        Transcript("who is the mentor of the founder of melux?", None, turns),
    )
    assert told == [
        "<runner>founder melux</runner>",
        "search founder melux",
        "web founder melux",
        "<result>dilil</result>",
        "<runner>mentor dilil</runner>",
        "search mentor dilil",
        "<result>huram</result>",
        "<answer>huram</answer>",
    ]


def test_teams_without_a_lead_are_played_by_the_expert_itself() -> None:
    assert SPEC.is_transcribed(team()) and not SPEC.is_transcribed(TeamOptions())


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (team(action="{content}"), "no_answer"),
        (team(action="{content}", turns=1), "too_many_turns"),
        (team(action="{content}", rounds=2), "too_many_tasks"),
        (team("answer {content}"), "no_agent"),
    ],
)
def test_what_cannot_be_written(options: TeamOptions, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        SPEC.transcribe(options, planner_transcript())
