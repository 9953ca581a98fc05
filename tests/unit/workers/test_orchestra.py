"""Orchestrators: graphs as their authors read them, blocks of agents who only speak, own answers and revised plans."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from verl_hier.environments.base import Environment, StepResult
from verl_hier.errors import RecipeError
from verl_hier.graph import graph_rows
from verl_hier.graph.nodes import RolloutGraph
from verl_hier.host.options import build_options
from verl_hier.host.specs import NoOptions
from verl_hier.rollout import Limits
from verl_hier.rollout.transcript import EnvironmentCall, Transcript, TranscriptTurn
from verl_hier.testing.rollout import CharacterTokenizer, roll_out_scripted
from verl_hier_plugins.samplers.independent import Independent
from verl_hier_plugins.workers.designer_executor import hier_workers
from verl_hier_plugins.workers.designer_executor.design import DesignError
from verl_hier_plugins.workers.designer_executor.graph import edges_of, ordered, parts, read_graph
from verl_hier_plugins.workers.designer_executor.transcribe import transcribe

WORKER = hier_workers()
CASES = json.loads((Path(__file__).parents[2] / "fixtures/authors_cases/mas_orchestra_graph.json").read_text("utf-8"))
ROLES = {
    "CoTAgent": {"tools": []},
    "SCAgent": {"tools": [], "block": "self_consistency"},
    "ReflexionAgent": {"tools": [], "block": "reflexion"},
    "DebateAgent": {"tools": [], "block": "debate"},
}
PROMPTS = {
    "executor_prompt": "ask {role}: {order}",
    "blocks": {
        "rounds": 2,
        "critic_prompt": "check {said}",
        "revise_prompt": " mend {said} ",
        "debate_prompt": " heard {said} ",
        "decide_prompt": "decide {said}",
        "message": "{role}={text}",
        "between": "; ",
    },
}
SPEAKING = {
    "roles": ROLES,
    "define_roles": False,
    "direct_tag": "answer",
    "answer_tag": "answer",
    "answer_action": "{content}",
    "delivery_tag": None,
    "delivery_reward": 0.0,
    "final_reward": 0.0,
    "design_reward": 0.1111,
    **PROMPTS,
}


class Question(Environment):
    """Is right when it is told 42; has so many tries."""

    def __init__(self, tries: int = 1) -> None:
        self.tries = tries
        self.told: list[str] = []

    def reset(self, task: Any, seed: int) -> StepResult:
        return StepResult("ready", 0.0, False)

    def step(self, action: str) -> StepResult:
        self.told.append(action)
        right = action == "42"
        return StepResult("right" if right else "no", float(right), right or len(self.told) >= self.tries)


class Played:
    """One episode, what its world was told, and the prompts."""

    def __init__(self, graph: RolloutGraph, world: Question, prompts: Sequence[str]) -> None:
        self.graph, self.told, self.prompts = graph, world.told, list(prompts)
        self.agents = [node.agent for node in graph.nodes]
        self.ret = graph.episodes[0].ret


@pytest.fixture
def play(run: Any) -> Callable[..., Played]:
    """`play(answers, …)`: the turns one after the other, or a function of the prompt."""

    def play(said: Any, tries: int = 1, **options: Any) -> Played:
        texts, world = iter(said) if isinstance(said, list) else None, Question(tries)
        graph, policy = run(
            roll_out_scripted(
                environment=lambda: world,
                worker=WORKER,
                options=build_options(WORKER, {**SPEAKING, **options}),
                sampler=Independent(NoOptions()),
                answer=lambda prompt, sampling: next(texts) if texts is not None else said(prompt),
                n=1,
                limits=Limits(60, 4000, 100_000),
                tokenizer=CharacterTokenizer(),
            )
        )
        return Played(graph, world, [policy.tokenizer.decode(graph.prompt(node.id)) for node in graph.nodes])

    return play


# ---- graphs ----------------------------------------------------------------------------------------------------------

REFUSED_HERE = {
    "a debate of one": "sides",
    "a debate of letters": "sides",
    "a debate of a text": "sides",
    "nothing": "empty",
}
"""Cases in which the released code takes the whole turn for an answer, and pays it for being carried out."""


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["case"])
def test_a_graph_is_read_as_its_authors_do(case: dict[str, Any], play: Any) -> None:
    count = 0

    def said(prompt: str) -> str:
        nonlocal count
        if prompt.startswith("design"):
            return str(case["text"])
        count += 1
        return f"<answer>said{count}</answer>"

    # One turn a call, and a debate of one turn for each side and one who decides.
    roles = {name: {"tools": []} for name in ROLES} | {"DebateAgent": {"tools": [], "block": "debate"}}
    played = play(said, language="graph", roles=roles, blocks={**PROMPTS["blocks"], "rounds": 1})
    theirs, first = case["theirs"], played.graph.nodes[0]
    if case["case"] in REFUSED_HERE:
        assert theirs == {"answer": theirs["answer"]}
        assert first.extra["failure"] == f"design_{REFUSED_HERE[case['case']]}" and not played.told
    elif "refused" in theirs:
        assert str(first.extra["failure"]).startswith("design_") and played.told == [] and played.ret == 0
    elif "answer" in theirs:
        assert played.told == [theirs["answer"]] and len(played.graph.nodes) == 1
        assert first.extra == {"design_valid": 1, "design_steps": 0}
    else:
        orders = [prompt.partition(": ")[2].removesuffix("<act>").strip() for prompt in played.prompts[1:]]
        if theirs["calls"][0][0] == "DebateAgent":
            asked = [prompt.partition(": ")[0].removeprefix("ask ") for prompt in played.prompts[1:3]]
            assert asked == theirs["calls"][0][2] and played.told == ["said3"]
            return
        assert played.agents[1:] == [call[0] for call in theirs["calls"]]
        assert orders == [call[1] for call in theirs["calls"]] and played.told == [theirs["result"]]


def test_which_rule_a_graph_breaks() -> None:
    def why(agents: list[str], *edges: tuple[str, str]) -> str:
        with pytest.raises(DesignError) as error:
            ordered(agents, edges)
        return error.value.name

    assert why(["a", "b"]) == "unconnected"
    assert why(["a", "b"], ("a", "c")) == "unknown_agent"
    assert why(["a", "b", "c"], ("a", "b"), ("a", "c")) == "many_ends"
    assert why(["a", "b", "c"], ("a", "b"), ("b", "a"), ("b", "c")) == "cycle"
    with pytest.raises(DesignError) as error:
        read_graph(CASES[0]["text"] * 2, build_options(WORKER, {**SPEAKING}).limits())
    assert error.value.name == "doubled_agent"
    with pytest.raises(DesignError) as error:
        many = "".join(CASES[0]["text"].replace(">a<", f">a{n}<") for n in range(17))
        read_graph(many, build_options(WORKER, {**SPEAKING}).limits())
    assert error.value.name == "too_many_steps"


def test_tags_are_paired_one_after_the_other() -> None:
    assert parts("<a>1</a> <A>2</A> <a>3", "a") == ["1", "2"]
    assert parts("<a><a>1</a></a>", "a") == ["<a>1"]
    assert edges_of("<edge><from>a</from><to>b</to><from>c</from></edge><edge><from>d</from><to>e</to></edge>") == [
        ("a", "b")
    ]
    assert len(parts("<a>" * 100_000, "a")) == 0


# ---- blocks ----------------------------------------------------------------------------------------------------------


def tagged(*texts: str) -> list[str]:
    return [f"<answer>{text}</answer>" for text in texts]


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (tagged("1", "42", "42", "3", "4"), "42"),
        (tagged("1", "42", "42", "1", "5"), "1"),  # of equally many, what was said first
        ([*tagged("7"), "no tag", "no tag", "no tag", "none"], "7"),
        (["x", "y", "y", "z", "w"], "y"),  # nobody has an answer
    ],
)
def test_what_most_say_counts(play: Any, said: list[str], told: str) -> None:
    played = play(["SCAgent", *said], blocks={"samples": 5})
    assert played.told == [told]
    assert played.agents == ["designer", *(f"SCAgent {number}" for number in range(1, 6))]
    assert len(graph_rows(played.graph, lambda node: True)) == 6, "each sees the order alone"
    assert played.prompts[1:] == ["ask SCAgent: <act>"] * 5
    missing = [node.extra.get("failure") for node in played.graph.nodes[1:]]
    assert missing == [None if text.startswith("<answer>") else "no_answer" for text in said]
    assert played.ret == pytest.approx(0.1111 + (told == "42"))


def test_an_answer_is_mended_until_a_critic_approves(play: Any) -> None:
    played = play(["ReflexionAgent", *tagged("1", "carry the one", "42", "True")])
    assert played.told == ["42"]
    assert played.agents[1:] == [
        "ReflexionAgent",
        "ReflexionAgent critic",
        "ReflexionAgent",
        "ReflexionAgent critic",
    ]
    assert played.prompts[2] == "check ReflexionAgent=<answer>1</answer><act>", "the critic reads the whole turn"
    assert " mend ReflexionAgent critic=<answer>carry the one</answer>" in played.prompts[3]
    assert played.prompts[3].startswith(played.prompts[1]), "the agent remembers its attempt"
    assert played.prompts[4].startswith("check") and "carry" not in played.prompts[4], "each critic begins anew"
    last = play(["ReflexionAgent", *tagged("1", "no", "2", "no", "3")])
    assert last.told == ["3"] and len(last.agents) == 1 + 1 + 2 * 2, "two verdicts, and an answer after the last one"


def test_sides_read_each_other_and_somebody_decides(play: Any) -> None:
    played = play(["DebateAgent", *tagged("1", "2", "3", "4", "42")])
    assert played.told == ["42"] and len(played.agents) == 1 + 2 * 2 + 1
    assert [prompt.partition(":")[0] for prompt in played.prompts[1:3]] == ["ask first", "ask second"]
    assert played.prompts[3].endswith(" heard DebateAgent 2=<answer>2</answer> <act>")
    assert played.prompts[4].endswith(" heard DebateAgent 1=<answer>1</answer> <act>"), "of the last round"
    assert played.prompts[5] == "decide DebateAgent 1=<answer>3</answer>; DebateAgent 2=<answer>4</answer><act>"
    assert play(["DebateAgent", *tagged(*"123456789"), "x"], blocks={"rounds": 1}).told == ["3"]


def test_calls_hand_answers_on(play: Any) -> None:
    played = play(["a = SCAgent('halve it'); CoTAgent('double', a)", *tagged("21", "21", "9", "8", "7"), "so 42"])
    assert played.prompts[-1].startswith("ask CoTAgent: double\n21") and played.told == ["so 42"]
    assert played.graph.nodes[-1].extra["failure"] == "no_answer"
    nodes = played.graph.nodes
    assert [node.segment for node in nodes] == [0, *[0] * 5, 1] and {node.plan for node in nodes[1:]} == {0}


def test_a_role_with_tools_acts_until_it_has_an_answer(play: Any) -> None:
    roles = {**ROLES, "SearchAgent": {"turns": 4}}
    played = play(["SearchAgent", "search x", *tagged("found 42")], tries=3, roles=roles)
    assert played.told == ["search x", "found 42"], "its answer is no action of its own, but the team's"
    assert played.agents == ["designer", "SearchAgent", "SearchAgent"]
    texts = ["a = SearchAgent('who'); CoTAgent('is it', a)", "search x", *tagged("found it", "42")]
    played = play(texts, tries=3, roles=roles)
    assert played.told == ["search x", "42"] and played.prompts[-1].startswith("ask CoTAgent: is it\nfound it")


# ---- the designer's own answer, and plans that are revised -----------------------------------------------------------


def test_an_answer_of_its_own_calls_nobody(play: Any) -> None:
    played = play(["<answer>42</answer>"])
    assert played.agents == ["designer"] and played.told == ["42"] and played.ret == pytest.approx(1.1111)
    assert play(["<answer></answer>"]).graph.nodes[0].extra["failure"] == "design_syntax"
    assert play(["<answer>42</answer>"], direct_tag=None).told == []


@pytest.mark.parametrize(
    ("first", "hears"), [("nobody", "there is no role 'nobody'"), ("<answer>41</answer>", "41 no")]
)
def test_a_plan_that_failed_is_revised(play: Any, first: str, hears: str) -> None:
    options = {"plans": 2, "feedback_prompt": " [{refusal}{result} {observation}] "}
    played = play([first, "CoTAgent", *tagged("42")], tries=2, **options)
    assert played.told[-1] == "42" and [node.role for node in played.graph.nodes] == [
        "designer",
        "designer",
        "executor",
    ]
    assert hears in played.prompts[1] and played.prompts[1].startswith(played.prompts[0])
    assert played.graph.nodes[2].plan == 1, "of the plan that it carries out"
    assert played.ret == pytest.approx(1.1111), "a plan that can be carried out is paid once"
    once = play([first, "CoTAgent", *tagged("42")], tries=2)
    assert len(once.graph.nodes) == 1


def test_calls_of_later_plans_have_segments_of_their_own(play: Any) -> None:
    played = play(["CoTAgent", *tagged("1"), "CoTAgent", *tagged("42"), "CoTAgent"], tries=5, plans=5)
    assert [(n.role, n.segment) for n in played.graph.nodes] == [
        ("designer", 0),
        ("executor", 0),
        ("designer", 0),
        ("executor", 1),
    ]


# ---- recipes and demonstrations --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"roles": {"a": {"block": "debate"}}}, "roles.a: the agents of debate only speak"),
        ({"roles": {"a": {"block": "reflexion", "tools": [], "context": "kept"}}}, "only speak"),
        ({"language": "graph", "define_roles": True}, "define_roles: a graph calls the roles of the recipe"),
        ({"blocks": {"sides": ["one"]}}, "blocks.sides must name at least two"),
        ({"blocks": {"approve": " "}}, "blocks.approve must not be empty"),
        ({"answer_action": "{text}"}, "answer_action may use {content} only"),
    ],
)
def test_what_a_recipe_cannot_say(options: dict[str, Any], says: str) -> None:
    with pytest.raises(RecipeError, match=says.replace("{", "\\{")):
        build_options(WORKER, {**SPEAKING, **options})


@pytest.mark.parametrize("language", ["script", "graph"])
def test_what_is_shown_can_be_played(play: Any, language: str) -> None:
    ways, verdicts = set(), set()
    for number in range(60):
        question = f"what is {number} and two"
        options = build_options(WORKER, {**SPEAKING, "language": language})
        calls = (EnvironmentCall("so it is <answer>42</answer>", StepResult("right", 1.0, True)),)
        heard = Transcript(question, StepResult("ready"), (TranscriptTurn(None, "", calls),))
        texts = transcribe(options, heard)
        assert texts == transcribe(options, heard)
        played = play(list(texts), language=language)
        assert len(played.graph.nodes) == len(texts) and played.told == ["42"]
        assert all("failure" not in node.extra for node in played.graph.nodes)
        ways.add(played.agents[-1])
        verdicts |= {node.text for node in played.graph.nodes if node.agent == "ReflexionAgent critic"}
    assert ways == {"designer", "CoTAgent", "SCAgent 5", "ReflexionAgent critic", "DebateAgent decision"}
    assert verdicts == {"<answer>wrong</answer>", "<answer>true</answer>"}


def test_what_cannot_be_shown() -> None:
    empty = Transcript("what", StepResult("ready"), ())
    with pytest.raises(ValueError, match="no_answer"):
        transcribe(build_options(WORKER, SPEAKING), empty)
    assert not WORKER.is_transcribed(build_options(WORKER, {})), "the expert plays roles with tools itself"
