"""Planner and agents in contexts of their own: rows, refusals, refiner, and CoDA's fixture along the whole way."""

from __future__ import annotations

import asyncio
import json
import random
import re

import numpy as np
import pytest

from tests.conformance.runner import CASES
from tests.fixtures.corridor import Corridor
from tests.fixtures.planner_transcript import planner_transcript
from verl_hier.environments.base import Environment, StepResult
from verl_hier.graph import build_table, graph_rows, number_turns
from verl_hier.graph.nodes import Node
from verl_hier.host.specs import NoOptions
from verl_hier.rewards.answers import answer_and_tools
from verl_hier.rollout import Limits
from verl_hier.rollout.rewards import Reward, rate
from verl_hier.rollout.transcript import EnvironmentCall, Transcript, TranscriptTurn
from verl_hier.testing.rollout import roll_out_scripted
from verl_hier_plugins.estimators.coda_peco import CoDAOptions, advantage
from verl_hier_plugins.samplers.independent import Independent
from verl_hier_plugins.workers.delegation import AgentOptions, DelegationOptions, hier_workers
from verl_hier_plugins.workers.delegation.transcribe import transcribe


def roll(said, environment=lambda: Corridor(3), n=1, sampler=None, levels=None, **options):
    turns = iter(said) if not callable(said) else None
    return asyncio.run(
        roll_out_scripted(
            environment=environment,
            worker=hier_workers(),
            options=DelegationOptions(**options),
            sampler=sampler or Independent(NoOptions()),
            answer=said if callable(said) else lambda prompt, sampling: next(turns),
            n=n,
            levels=levels,
            limits=Limits(max_turns=30, max_tokens_per_turn=64, context_tokens=4096),
        )
    )


def test_each_task_has_a_context_of_its_own_and_the_planner_hears_the_result():
    graph, policy = roll(
        [
            "<executor>go on</executor>",
            "right",
            "<result>one step</result>",
            "<executor>end it</executor>",
            "right",
            "right",
        ]
    )
    assert [n.role for n in graph.nodes] == ["planner", "executor", "executor", "planner", "executor", "executor"]
    assert [n.level for n in graph.nodes] == [0, 1, 1, 0, 1, 1] and [n.segment for n in graph.nodes] == [
        0,
        0,
        0,
        1,
        1,
        1,
    ]
    assert [n.plan for n in graph.nodes] == [-1, 0, 0, -1, 3, 3]
    rows = graph_rows(graph, lambda node: True)
    assert [[graph.nodes[i].role for i in row.nodes] for row in rows] == [
        ["planner"] * 2,
        ["executor"] * 2,
        ["executor"] * 2,
    ]
    assert "executor : one step" in policy.tokenizer.decode(policy.prompts[3])
    assert "goal : end it" in policy.tokenizer.decode(policy.prompts[4]) and "one step" not in policy.tokenizer.decode(
        policy.prompts[4]
    )
    assert graph.episodes[0].success


def test_an_agent_may_only_take_its_own_actions():
    agents = {"walker": AgentOptions(actions=("right",), turns=3), "thinker": AgentOptions(actions=("think",), turns=2)}
    graph, _ = roll(
        ["<thinker>walk</thinker>", "right", "right", "<walker>walk</walker>", "right", "right", "right"], agents=agents
    )
    assert [n.extra.get("failure") for n in graph.nodes[1:3]] == ["tool_in_wrong_role"] * 2
    assert graph.counts["environment_calls"] == 3 and graph.episodes[0].success
    assert {n.agent for n in graph.nodes} == {"planner", "thinker", "walker"}


@pytest.mark.parametrize(
    "said, failure",
    [(["no tag at all"], "no_tag"), (["<stranger>do</stranger>"], "no_tag"), (["<executor>never closed"], "no_tag")],
)
def test_a_planner_without_a_tag_ends_the_episode_by_name(said, failure):
    graph, _ = roll(said)
    assert graph.nodes[0].extra["failure"] == failure and not graph.nodes[0].valid
    assert graph.episodes[0].status == "truncated" and graph.episodes[0].error == f"planner: {failure}"


def test_too_many_tasks_end_the_episode():
    graph, _ = roll(["<executor>a</executor>", "<result>x</result>"] * 3, max_tasks=2)
    assert graph.nodes[-1].extra["failure"] == "too_many_tasks" and len(graph.nodes) == 5


def test_the_refiner_stands_between_agent_and_planner():
    graph, policy = roll(
        ["<executor>go</executor>", "right", "<result>mud</result>", "gold", "<answer>gold</answer>"], refine=True
    )
    assert [n.role for n in graph.nodes] == ["planner", "executor", "executor", "refiner", "planner"]
    refiner, planner = (policy.tokenizer.decode(policy.prompts[i]) for i in (3, 4))
    assert "at 1 | mud" in refiner and "executor : gold" in planner and "mud" not in planner


FORMATS = {"planner_format": 1.0, "executor_format": 0.6}


def test_formats_are_rewarded_by_the_share_of_sound_turns():
    said = ["<executor>go</executor>", "fly", "right", "<result>x</result>", "<answer>y</answer>"]
    agents = {"executor": AgentOptions(actions=("right",))}
    graph, _ = roll(said, agents=agents, format_by="turn", **FORMATS)
    assert graph.episodes[0].ret == pytest.approx(1.0 + 0.6 * 2 / 3)
    strict = {"executor": AgentOptions(actions=("right",), turns=1)}
    graph, _ = roll(["<executor>go</executor>", "fly", "nonsense"], agents=strict, planner_format=1.0, format_by="turn")
    assert graph.episodes[0].ret == pytest.approx(0.5)


SOUND, HASTY = (
    ["<executor>go</executor>", "right", "<result>x</result>"],
    ["<executor>go</executor>", "<result>x</result>"],
)
REFUSED = ["<executor>go</executor>", "fly", "right", "<result>x</result>"]


@pytest.mark.parametrize(
    ("said", "planner", "agents"),
    [
        ([*SOUND, "<answer>y</answer>"], 1, 1),
        ([*SOUND, *HASTY, "<answer>y</answer>"], 1, 1 / 2),
        ([*SOUND, *REFUSED, *SOUND, "<answer>y</answer>"], 1, 2 / 3),
        (["<answer>y</answer>"], 0, 0),
        ([*SOUND, "nonsense"], 0, 1),
        ([*SOUND, *SOUND, *SOUND, *SOUND], 0, 1),
        (["<executor>go</executor>", "right", "right", "right"], 1, 1),
    ],
    ids=["sound", "no action", "a refusal", "no task", "no tag", "no answer", "the world ends it"],
)
def test_formats_are_rewarded_by_the_share_of_sound_conversations(said, planner, agents):
    """As in CoDA: the planner has one, every task has one, and nothing may be missing or invalid in it."""
    world = (lambda: Corridor(3)) if len(said) == 4 and said[-1] == "right" else (lambda: Corridor(50))
    options = {"agents": {"executor": AgentOptions(actions=("right",))}, "max_tasks": 3}
    with_formats, without = (roll(list(said), world, **options, **more)[0].episodes[0].ret for more in (FORMATS, {}))
    assert with_formats - without == pytest.approx(planner + 0.6 * agents)


def test_a_planner_without_a_tag_may_try_again():
    said = ["no tag", "<executor>go</executor>", "right", "right", "right"]
    graph, policy = roll(said, retry_prompt="say it in a tag")
    assert [n.extra.get("failure") for n in graph.nodes[:2]] == ["no_tag", None] and graph.episodes[0].success
    assert "no tag <end> say it in a tag" in policy.tokenizer.decode(policy.prompts[1])
    graph, _ = roll(["no tag"] * 3, retry_prompt="say it in a tag", max_tasks=2)
    assert len(graph.nodes) == 3 and graph.episodes[0].error == "planner: no_tag"


# ---- agents that work alone ------------------------------------------------------------------------------------------

TWO = {"local": AgentOptions(actions=("right",)), "web": AgentOptions(actions=("left",))}


def test_agents_learn_alone_on_the_question_while_their_planner_is_frozen():
    options = {"agents": TWO, "alone": ("local",), "answer_action": "{content}", "executor_format": 0.5}
    said = ["right", "right", "<result>right</result>"]
    graph, policy = roll(list(said), lambda: Corridor(3), levels=frozenset({1}), **options)
    assert [(n.role, n.agent, n.level, n.plan) for n in graph.nodes] == [("executor", "local", 1, -1)] * 3
    assert policy.tokenizer.decode(policy.prompts[0]).startswith("goal : do it")
    assert graph.episodes[0].success, "its result is the answer"
    assert graph.nodes[-1].reward == pytest.approx(1.0 + 0.5) and len(graph_rows(graph, lambda node: True)) == 1
    for levels in (None, frozenset({0}), frozenset({0, 1})):
        graph, _ = roll(["<answer>right</answer>"], lambda: Corridor(3), levels=levels, **options)
        assert [n.role for n in graph.nodes] == ["planner"], "the planner leads wherever it learns, and in evaluation"
    graph, _ = roll(list(said), lambda: Corridor(3), alone_when="always", **options)
    assert {n.role for n in graph.nodes} == {"executor"}


class Quiz(Environment):
    """A question whose documents say nothing; an answer ends it, and its own reward is 0."""

    def reset(self, task, seed):
        return StepResult("")

    def step(self, action):
        return StepResult("docs", 0.0, done=action.startswith("answer"), info={"won": False})


@pytest.mark.parametrize(("levels", "said"), [(1, "<result>{}</result>"), (0, "<answer>{}</answer>")])
def test_each_stage_of_hiersearch_learns_from_its_own_answers(levels, said):
    """Rewards by definition, then their z-score: the first stage has a baseline too."""
    given = ["old lake", "lake", "hill", "no tag"]
    rewards = [1.0, 2 / 3, 0.1 * 1 / 2, 0.0]
    queue = []
    for words in given:
        last = "nothing" if words == "no tag" else said.format(words)
        queue += ["find x", *([last] * (3 if words == "no tag" else 1))] if levels else []
        queue += [] if levels else ["<local>x</local>", "find x", "<result>docs</result>", last]

    class OneByOne(Independent):
        async def sample(self, rollout):
            for _ in range(rollout.n):
                await rollout.start().run()

    agents = {"local": AgentOptions(actions=("find",), turns=4), "web": AgentOptions(actions=("look",))}
    task = {"instruction": "which?", "answers": ["the old lake"]}
    rolled = roll_out_scripted(
        environment=Quiz,
        worker=hier_workers(),
        options=DelegationOptions(agents=agents, alone=("local",), answer_action="answer {content}"),
        sampler=OneByOne(NoOptions()),
        answer=lambda prompt, sampling: queue.pop(0),
        task=task,
        n=4,
        levels=frozenset({levels}),
    )
    graph, _ = asyncio.run(rolled)
    tools = {"planner": ["<local>", "<web>"], "local": ["find", "search"]}
    options = {"answer": "<(?:answer|result)>([^<]*)", "tools": tools, "wrong": 0.1}
    asyncio.run(rate(graph, task, {"answer": Reward(answer_and_tools, options=options)}))
    assert [episode.ret for episode in graph.episodes] == pytest.approx(rewards)
    assert {node.level for node in graph.nodes} == ({1} if levels else {0, 1})
    table, _ = number_turns([graph], [lambda role, level: level == levels])
    scores = (np.array(rewards) - np.mean(rewards)) / (np.std(rewards, ddof=1) + 1e-6)
    learns = np.asarray(table["level"]) == levels
    assert advantage(table, CoDAOptions()) == pytest.approx(np.where(learns, scores[np.asarray(table["episode"])], 0.0))


def test_an_agent_alone_that_never_reports_gives_no_answer():
    agents = {"local": AgentOptions(actions=("right",), turns=2)}
    options = {"agents": agents, "alone": ("local",), "alone_when": "always", "answer_action": "{content}"}
    graph, _ = roll(["right", "right"], lambda: Corridor(5), **options)
    assert len(graph.nodes) == 2 and graph.counts["environment_calls"] == 2
    graph, _ = roll(["fly", "fly"], lambda: Corridor(5), executor_format=1.0, **options)
    assert [n.extra["failure"] for n in graph.nodes] == ["tool_in_wrong_role"] * 2 and graph.episodes[0].ret == 0.0


def test_each_question_goes_to_one_agent_always_the_same():
    options = DelegationOptions(agents=TWO, alone=("local", "web"))
    questions = [f"who is {number}?" for number in range(400)]
    given = [options.alone_for(question) for question in questions]
    assert given == [options.alone_for(question) for question in questions]
    assert 150 < given.count("local") < 250 and given.count("local") + given.count("web") == 400


def test_the_roles_are_those_that_can_speak():
    roles = hier_workers().levels
    assert roles(DelegationOptions(refine=True)) == {"planner": 0, "executor": 1, "refiner": 1}
    assert roles(DelegationOptions()) == {"planner": 0, "executor": 1}
    assert roles(DelegationOptions(agents=TWO, alone=("web",), alone_when="always")) == {"executor": 1}


class Judge(Environment):
    """Pays what the answer says."""

    def reset(self, task, seed):
        return StepResult("begin")

    def step(self, action):
        amount = re.search(r"(minus)?\D*(\d+) half", action)
        if amount is None:
            return StepResult("noted")
        return StepResult("over", (-1 if amount[1] else 1) * int(amount[2]) / 2, done=True, info={"won": True})


@pytest.mark.parametrize("case", json.loads((CASES / "coda_peco.json").read_text())["cases"])
def test_codas_fixture_through_worker_table_and_estimator(case):
    """Every rollout of the fixture is played: one planner turn for each of its executors, then the answer."""
    given, expected = case["input"], case["output"]["adv"]
    graphs, wanted = [], []
    for question in dict.fromkeys(given["question"]):
        names = list(
            dict.fromkeys(r for r, q in zip(given["rollout"], given["question"], strict=True) if q == question)
        )
        said: list[str] = []
        for name in names:
            rows = [i for i, r in enumerate(given["rollout"]) if r == name]
            executors = [i for i in rows if given["role"][i] == "executor"]
            half = round(2 * given["score"][rows[0]])
            for _ in executors:
                said += ["<executor>work</executor>", "note", "<result>done</result>"]
            said.append(f"<answer>{'minus ' if half < 0 else ''}{abs(half)} half</answer>")
            wanted.append((given["score"][rows[0]], expected[rows[0]], 1 + len(executors), given["epsilon"]))
        scripts = iter(_by_episode(said))
        graph, _ = asyncio.run(_in_order(scripts, len(names)))
        graphs.append(graph)
    table = build_table(graphs)
    credit = advantage(table, CoDAOptions(eps=wanted[0][3]))
    assert table["episodes.return"].tolist() == pytest.approx([score for score, *_ in wanted])
    for episode, (_, value, rows, _) in enumerate(wanted):
        mine = np.asarray(credit)[np.asarray(table["episode"]) == episode]
        assert mine == pytest.approx(np.full(len(mine), value), rel=2e-4, abs=1e-6)
        assert (np.asarray(table["level"])[np.asarray(table["episode"]) == episode] == 0).sum() == rows


def _by_episode(said):
    episode: list[str] = []
    for text in said:
        episode.append(text)
        if text.startswith("<answer>"):
            yield episode
            episode = []


async def _in_order(scripts, n):
    """Episodes one after the other, each with its own script."""

    class OneByOne(Independent):
        async def sample(self, rollout):
            for _ in range(rollout.n):
                turns.extend(next(scripts))
                await rollout.start().run()

    turns: list[str] = []
    return await roll_out_scripted(
        environment=Judge,
        worker=hier_workers(),
        options=DelegationOptions(answer_action="{content}"),
        sampler=OneByOne(NoOptions()),
        answer=lambda prompt, sampling: turns.pop(0),
        n=n,
    )


def test_a_planners_episode_can_be_told_and_plays():
    transcript = planner_transcript()
    told = transcribe(DelegationOptions(), transcript)
    assert told == [
        "<executor>one</executor>",
        "right",
        "<result>done</result>",
        "<executor>two</executor>",
        "right",
        "right",
    ]
    graph, _ = roll(told)
    assert graph.episodes[0].success
    with pytest.raises(ValueError, match="no_agent"):
        transcribe(DelegationOptions(agents={"executor": AgentOptions(actions=("left",))}), transcript)
    with pytest.raises(ValueError, match="too_many_turns"):
        transcribe(DelegationOptions(agents={"executor": AgentOptions(turns=1)}), transcript)
    with pytest.raises(ValueError, match="too_many_tasks"):
        transcribe(DelegationOptions(max_tasks=1), transcript)


def test_an_agent_whose_turns_are_used_up_writes_no_report():
    options = DelegationOptions(agents={"executor": AgentOptions(turns=2)}, refine=True)
    told = transcribe(options, planner_transcript())
    assert told[1:4] == ["right", "<result>done</result>", "done"], "the refiner rewrites every report"
    assert told[-2:] == ["right", "right"]
    short = DelegationOptions(agents={"executor": AgentOptions(turns=1)}, max_tasks=3)
    told = transcribe(short, asked("find ada", "find bob", segments=(0, 1)))
    assert told == ["<executor>goal 0</executor>", "find ada", "<executor>goal 1</executor>", "find bob"]


def asked(*actions, segments, instruction="who taught ada?"):
    """A planner's episode whose actions have the given segments; each is answered with `ACTION is NAME`."""
    goals = " ; ".join(f"goal {number}" for number in range(max(segments) + 1))
    names = {"find ada": "bob", "find bob": "cid", "lookup bob": "dan"}

    def turn(level, text, segment, calls=()):
        return TranscriptTurn(Node(0, -1, -1, 0, "a", "a", level, 0, segment, -1, [], [], []), text, calls)

    acts = [
        turn(1, action, segment, (EnvironmentCall(action, StepResult(f"{action} is {names.get(action, '')}")),))
        for action, segment in zip(actions, segments, strict=True)
    ]
    return Transcript(instruction, StepResult(""), (turn(0, goals, 0), *acts))


def test_a_planner_that_has_to_answer_is_told_what_was_found():
    """Its tasks name what is known by then, and each report has what the next step needs."""
    options = DelegationOptions(
        agents={"local": AgentOptions(actions=("find",)), "web": AgentOptions(actions=("lookup",))},
        answer_action="answer {content}",
    )
    actions = ("find ada", "find bob", "lookup bob", "answer dan")
    assert transcribe(options, asked(*actions, segments=(0, 1, 1, 2))) == [
        "<local>ada</local>", "find ada", "<result>bob</result>",
        "<local>bob</local>", "find bob", "<result>nothing</result>",
        "<web>bob</web>", "lookup bob", "<result>dan</result>",
        "<answer>dan</answer>",
    ]  # fmt: skip


def test_an_agent_that_always_works_alone_is_told_the_whole_episode():
    options = DelegationOptions(
        agents={"local": AgentOptions(actions=("find",), turns=3)},
        alone=("local",),
        alone_when="always",
        answer_action="answer {content}",
    )
    told = transcribe(options, asked("find ada", "find bob", "answer cid", segments=(0, 1, 2)))
    assert told == ["find ada", "find bob", "<result>cid</result>"]
    with pytest.raises(ValueError, match="no_agent"):
        transcribe(options, asked("find ada", "lookup bob", "answer dan", segments=(0, 1, 2)))
    with pytest.raises(ValueError, match="too_many_turns"):
        transcribe(options, asked("find ada", "find ada", "find bob", "answer cid", segments=(0, 0, 1, 2)))


PARTS = [
    "<executor>",
    "</executor>",
    "<answer>",
    "</answer>",
    "<result>",
    "</result>",
    "right",
    "é",
    " ",
    "<",
    "x" * 500,
]


@pytest.mark.slow
def test_hostile_text_is_counted_and_never_ends_a_run():
    chance = random.Random(7)

    def babble(prompt, sampling):
        return "".join(chance.choice(PARTS) for _ in range(chance.randint(0, 8)))

    seen = set()
    for _ in range(100):
        graph, _ = roll(babble, n=3, agents={"executor": AgentOptions(actions=("right",), turns=3)}, refine=True)
        assert all(e.status in ("finished", "truncated") for e in graph.episodes)
        seen |= {n.extra["failure"] for n in graph.nodes if "failure" in n.extra}
    assert {"no_tag", "tool_in_wrong_role"} <= seen
    for text in ("<executor>" * 1_000_000, "<executor>" + "x" * 10_000_000, "<" * 10_000_000):
        graph, _ = roll([text])
        assert graph.nodes[0].extra["failure"] == "no_tag"


@pytest.mark.parametrize(
    "options, sentence",
    [
        ({"agents": {}}, "at least one"),
        ({"agents": {"answer": AgentOptions()}}, "cannot be the name of an agent"),
        ({"answer_action": "{query}"}, "content"),
        ({"alone": ("web",)}, "alone: there is no agent 'web'; agents has executor"),
        ({"alone_when": "always"}, "alone names no agent"),
    ],
)
def test_options_that_make_no_sense_are_refused(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        DelegationOptions(**options)
