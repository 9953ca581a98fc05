"""AgentFlow's modules: who sees what, when it ends, and that only chosen roles need be trained."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

import pytest

from tests.fixtures.corridor import Corridor
from tests.fixtures.planner_transcript import planner_transcript
from verl_hier.graph import graph_rows
from verl_hier.host.specs import NoOptions
from verl_hier.testing.rollout import roll_out_scripted
from verl_hier_plugins.samplers.independent import Independent
from verl_hier_plugins.schedules.joint import Joint, JointOptions
from verl_hier_plugins.workers.agent_flow import AgentFlowOptions, hier_workers, transcribe


def roll(said, n=1, **options):
    turns = iter(()) if callable(said) else iter(said)
    return asyncio.run(
        roll_out_scripted(
            environment=lambda: Corridor(3),
            worker=hier_workers(),
            options=AgentFlowOptions(**options),
            sampler=Independent(NoOptions()),
            answer=said if callable(said) else lambda prompt, sampling: next(turns),
            n=n,
        )
    )


def test_modules_speak_in_turn_and_share_the_memory():
    graph, policy = roll(
        ["go", "right", "go on", "again", "left", "stop now", "gold"],
        answer_action="{content}",
    )
    roles = ["planner", "executor", "verifier", "planner", "executor", "verifier", "generator"]
    assert [n.role for n in graph.nodes] == roles
    assert [n.segment for n in graph.nodes] == [0, 0, 0, 1, 1, 1, 1]
    assert [n.plan for n in graph.nodes] == [-1, 0, 0, -1, 3, 3, 3]
    texts = [policy.tokenizer.decode(prompt) for prompt in policy.prompts]
    assert "right > at 1" in texts[3] and "left" not in texts[3]
    assert "right > at 1 ; left > at 1" in texts[6]
    assert graph.counts["environment_calls"] == 3
    assert all(len(row.nodes) == 1 for row in graph_rows(graph, lambda node: True))


def test_the_world_may_end_it():
    graph, _ = roll(["go", "right"] * 3, verifier=False)
    assert graph.episodes[0].success and len(graph.nodes) == 6
    graph, _ = roll(["go", "left"] * 2, verifier=False, steps=2)
    assert graph.episodes[0].status == "truncated"


def test_a_planner_can_act_itself_and_says_when_it_stops():
    options = {"executor": False, "verifier": False, "answer_action": "{content}"}
    graph, policy = roll(["right", "Stop.", "gold"], **options)
    assert [n.role for n in graph.nodes] == ["planner", "planner", "generator"]
    assert "right > at 1" in policy.tokenizer.decode(policy.prompts[2]) and graph.counts["environment_calls"] == 2
    # A word within an action ends nothing, and after the last step nobody has to say it.
    graph, _ = roll(["left stop left", "right", "gold"], steps=2, **options)
    assert [n.role for n in graph.nodes] == ["planner", "planner", "generator"]


def test_only_chosen_roles_are_trained():
    graph, _ = roll(["go", "right"] * 3, verifier=False)
    phase = Joint(JointOptions(roles=("planner",))).phase(1)
    trained = {graph.nodes[i].role for row in graph_rows(graph, phase.trains) for i in row.nodes if sum(row.mask)}
    assert trained == {"planner"}
    assert Joint(JointOptions()).phase(1).roles is None


def test_hostile_text_is_counted_and_never_ends_a_run():
    chance = random.Random(5)

    def babble(prompt, sampling):
        return "".join(
            chance.choice(["<a>", "</a>", "stop", "right", "é", "<", " "]) for _ in range(chance.randint(0, 5))
        )

    failures = set()
    for _ in range(100):
        graph, _ = roll(babble, n=3, action_tag="a", answer_action="{content}", steps=3)
        assert all(e.status in ("finished", "truncated") for e in graph.episodes)
        failures |= {n.extra["failure"] for n in graph.nodes if "failure" in n.extra}
    assert failures == {"no_action_tag", "empty_answer"}


def test_an_answer_without_content_is_refused():
    with pytest.raises(ValueError):
        AgentFlowOptions(answer_action="{x}")


def test_a_planners_episode_can_be_told_and_plays():
    transcript = planner_transcript()
    told = transcribe(AgentFlowOptions(verifier=False, action_tag="do"), transcript)
    assert told == ["right", "<do>right</do>"] * 3
    assert roll(told, verifier=False, action_tag="do")[0].episodes[0].success
    told = transcribe(AgentFlowOptions(), transcript)
    assert told == ["right", "right", "go on"] * 3
    assert roll(told)[0].episodes[0].success
    with pytest.raises(ValueError, match="too_many_steps"):
        transcribe(AgentFlowOptions(steps=2), transcript)


def test_the_last_action_can_be_the_generators_answer():
    """Every action of the corridor is one; where all of them may be answers, the first would come before any step."""
    with pytest.raises(ValueError, match="no_steps"):
        transcribe(AgentFlowOptions(answer_action="{content}"), planner_transcript())
    calls = planner_transcript()
    last = calls.turns[-1]
    answered = replace(last, calls=(replace(last.calls[0], action="answer gold"),))
    told = transcribe(
        AgentFlowOptions(answer_action="answer {content}"), replace(calls, turns=(*calls.turns[:-1], answered))
    )
    assert told == ["right", "right", "go on", "right", "right", "stop", "gold"]
    acting = AgentFlowOptions(executor=False, verifier=False, answer_action="answer {content}")
    calls = replace(calls, turns=(*calls.turns[:-1], answered))
    assert transcribe(acting, calls) == ["right", "right", "stop", "gold"]
    assert transcribe(replace(acting, steps=2), calls) == ["right", "right", "gold"]
