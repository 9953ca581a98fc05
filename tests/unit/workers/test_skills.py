"""The worker of skills: which one is shown, what is written down, and the way from there to the credit of ARISE."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.workers.test_proposer_solver_judge import Exam
from verl_hier.environments.base import StepResult
from verl_hier.graph.build_table import build_table
from verl_hier.host.manager import PluginHost
from verl_hier.host.options import build_options
from verl_hier.rollout import Limits, Request, Rollout, Scored
from verl_hier.rollout.recorded_policy import RecordedPolicy, differences
from verl_hier.rollout.roles import Roles
from verl_hier.rollout.transcript import EnvironmentCall, Transcript, TranscriptTurn
from verl_hier.testing import rollout as kit
from verl_hier.testing.builtin import credit_of
from verl_hier.testing.rollout import CharacterTokenizer, SideBySide
from verl_hier_plugins.workers.skills.choice import shares_of
from verl_hier_plugins.workers.skills.options import SkillsOptions
from verl_hier_plugins.workers.skills.texts import skill_of

WORKER: Any = PluginHost.load({"builtin": True}).spec("worker", "skills")
TASK = {"instruction": "three plus one"}
OPTIONS = {"prompt": "{instruction}", "aided_prompt": "{skill}: {instruction}", "action_tag": "act", "gate": 0.0}
RIGHT, WRONG = "so <act>answer 4</act>", "so <act>answer 5</act>"


class Likes(kit.ScriptedPolicy):
    """Says prepared texts, and finds texts with an `a` in them likely."""

    def __init__(self, tokenizer: Any, answer: Any) -> None:
        super().__init__(tokenizer, answer)
        self.scored: list[str] = []

    async def score(
        self, prompt: list[int], tokens: list[int], conversation: str, top: int = 0, temperature: float = 1.0
    ) -> Scored:
        text = self.tokenizer.decode(tokens)
        self.scored.append(text)
        return Scored([0.0 if "a" in text else -9.0] * len(tokens))


def play(options: dict[str, Any], skills: list[str], *texts: str, n: int = 1, policy: Any = None) -> Any:
    said, tokenizer = iter(texts), CharacterTokenizer()
    speaks = policy or Likes(tokenizer, lambda prompt, sampling: next(said))
    setup = kit._setup(speaks, tokenizer, Exam, 0, Limits(30, 300, 5000), None, None)
    made = build_options(WORKER, {**OPTIONS, **options})
    request = Request(task=TASK, identity={"uid": "u", "index": 0}, n=n, told={"skills": skills} if skills else {})
    rollout = Rollout(request, setup, lambda: WORKER.factory(made), Roles.of(WORKER, made))
    graph = asyncio.run(kit.roll_out(rollout, SideBySide()))
    graph.check()
    assert next(said, None) is None, "every text was spoken"
    return graph, speaks


def test_the_likeliest_skill_is_shown_and_asked_about_once_for_a_task():
    graph, policy = play({"explore": 0.0, "conclude": 0.0}, ["look up", "add units"], RIGHT, WRONG, n=2)
    assert sorted(policy.scored) == ["add units", "look up"]
    assert [node.messages[0].content for node in graph.nodes] == ["add units: three plus one"] * 2
    assert len(graph.request["likelihoods"]) == 2 and set(graph.request["likelihoods"].values()) == {0.0, -9.0}
    table = build_table([graph])
    assert table["skill_used"].tolist() == [1, 1] and table.texts["skill"].tolist() == ["add units"] * 2


@pytest.mark.parametrize(("options", "skills"), [({"gate": 1.0}, ["ab", "ac"]), ({}, [])])
def test_where_no_skill_stands_out_none_is_shown(options, skills):
    graph, _ = play({"conclude": 0.0, **options}, skills, RIGHT)
    assert graph.nodes[0].messages[0].content == "three plus one" and graph.nodes[0].extra["skill_used"] == 0


def test_words_in_common_choose_without_the_policy():
    options = {"select": "words", "gate": 0.3, "explore": 0.0, "conclude": 0.0}
    graph, policy = play(options, ["a skill of nothing", "plus one adds"], RIGHT)
    assert graph.nodes[0].extra["skill"] == "plus one adds" and policy.scored == []
    assert WORKER.needs_scores(SkillsOptions()) and not WORKER.needs_scores(SkillsOptions(select="words"))


def test_another_skill_is_explored_at_times():
    seen = {play({"explore": 1.0, "conclude": 0.0}, ["ab", "cd"], RIGHT, RIGHT, RIGHT, n=3)[0].nodes[i].extra["skill"]
            for i in range(3)}  # fmt: skip
    assert seen == {"ab", "cd"}


@pytest.mark.parametrize(("again", "verified"), [("<answer>so</answer>", 0), (RIGHT, 1)])
def test_a_solved_task_leaves_a_skill_that_is_verified(again, verified):
    graph, _ = play({"conclude": 1.0}, [], RIGHT, "<skill>carry  the one</skill>", again)
    assert [(node.role, node.level, node.plan) for node in graph.nodes] == [
        ("solver", 0, -1), ("concluder", 1, 0), ("verifier", 1, 1),
    ]  # fmt: skip
    assert graph.nodes[1].messages[0].content == f"conclude: three plus one | {RIGHT}"
    assert graph.nodes[2].messages[0].content == "carry the one: three plus one"
    assert graph.episodes[0].success and graph.episodes[0].status == "finished" and graph.episodes[0].ret == 1.0
    table = build_table([graph])
    assert table.texts["new_skill"].tolist() == [None, "carry the one", None]
    assert table["verified"].tolist() == [-1, verified, verified] and not table["skill_used"].any()


@pytest.mark.parametrize(
    "text",
    [
        *("nothing", "<skill></skill>", f"<skill>{'x' * 221}</skill>", "<skill><answer>4</skill>"),
        *("<skill>end with <ANSWER>x</ANSWER></skill>", "<skill>an <Answer id='1'> ends it</skill>"),
    ],
)
def test_what_is_no_skill_is_marked(text):
    graph, _ = play({"conclude": 1.0}, [], RIGHT, text)
    assert graph.nodes[1].extra["failure"] == "no_skill" and graph.nodes[1].extra["format"] == 0
    assert skill_of(text, SkillsOptions()) is None and "new_skill" not in graph.nodes[1].extra


ANSWERS = st.lists(st.text("abé4", min_size=1, max_size=3), min_size=1, max_size=3)


@given(ANSWERS, st.lists(st.text("xyz", min_size=1, max_size=3)), st.data())
def test_a_skill_that_tells_the_answer_is_none(answer, others, data):
    place = data.draw(st.integers(0, len(others)))
    marks = data.draw(st.sampled_from([" ", ", ", " - ", ": '"]))
    told = marks.join([*others[:place], *answer, *others[place:]])
    write = data.draw(st.sampled_from([str.lower, str.upper, str.title]))
    assert skill_of(f"<skill>{write(told)}</skill>", SkillsOptions(), [" ".join(answer)]) is None
    silent = " ".join(others)
    assert skill_of(f"<skill>{silent}</skill>", SkillsOptions(), [" ".join(answer)]) == (silent or None)


@pytest.mark.parametrize(("answer", "told"), [("4", "14 and 40 are close"), ("+", "plus"), ("a b", "b a")])
def test_what_only_looks_like_the_answer_may_stand_in_a_skill(answer, told):
    assert skill_of(f"<skill>{told}</skill>", SkillsOptions(), [answer]) == told
    assert skill_of(f"<skill>say {answer}</skill>", SkillsOptions(), [answer]) is None


def test_the_concluder_may_not_tell_the_right_answer():
    right = RIGHT.removeprefix("<answer>").removesuffix("</answer>")
    graph, _ = play({"conclude": 1.0}, [], RIGHT, f"<skill>the answer is {right.upper()}!</skill>")
    assert graph.nodes[1].extra["failure"] == "no_skill" and "new_skill" not in graph.nodes[1].extra


def test_nothing_is_concluded_from_a_wrong_answer():
    graph, _ = play({"conclude": 1.0}, [], WRONG)
    assert [node.role for node in graph.nodes] == ["solver"]


def test_the_way_to_the_credit_of_arise():
    options = {"explore": 0.0, "conclude": 0.0}
    aided, _ = play(options, ["a"], RIGHT, WRONG, n=2)
    table = build_table([aided])
    # Rewards 1 + 1 and 0: one standard deviation apart on either side of the mean.
    np.testing.assert_allclose(credit_of("arise", table), [2**-0.5, -(2**-0.5)], rtol=1e-5)


def test_a_replay_without_the_model_takes_the_same_skill():
    graph, policy = play({"conclude": 1.0}, ["look up", "add units"], RIGHT, "<skill>x</skill>", RIGHT)
    made = build_options(WORKER, {**OPTIONS, "conclude": 1.0})
    setup = kit._setup(RecordedPolicy(graph), policy.tokenizer, Exam, 0, Limits(30, 300, 5000), None, None)
    rollout = Rollout(Request.of(graph, TASK), setup, lambda: WORKER.factory(made), Roles.of(WORKER, made))
    assert differences(graph, asyncio.run(kit.roll_out(rollout, SideBySide()))) == []


def test_shares():
    assert shares_of([], 1.0) == [] and shares_of([-math.inf, -math.inf], 1.0) == [0.0, 0.0]
    assert shares_of([math.log(3.0), 0.0, -math.inf], 1.0) == pytest.approx([0.75, 0.25, 0.0])


def test_what_is_shown_can_be_played():
    action = "seven plus eight = five <answer>5</answer>"
    call = EnvironmentCall(action, StepResult("right", 1.0, True))
    said = WORKER.transcribe(SkillsOptions(longest=12), Transcript("x", None, (TranscriptTurn(None, "", (call,)),)))
    assert said == [action, "<skill>seven plus</skill>", action]
    with pytest.raises(ValueError, match="no_action"):
        WORKER.transcribe(SkillsOptions(), Transcript("x", None, ()))
