"""The team worker: who speaks after whom, what each role reads, and sub-agents side by side."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from tests.fixtures.hostile_rollouts import Attic
from verl_hier.errors import HierError
from verl_hier.host.manager import PluginHost
from verl_hier.host.options import build_options
from verl_hier.rollout import Limits
from verl_hier.testing.rollout import CharacterTokenizer, ScriptedPolicy, roll_out_scripted

TEAM = PluginHost.load({"builtin": True}).spec("worker", "team")
SOLVER, VERIFIER = {"prompt": "solve {instruction}", "later_prompt": "{said}"}, {"prompt": "check {said}"}
LOOP = {
    "roles": {"solver": SOLVER, "verifier": VERIFIER},
    "topology": {"kind": "verifier_loop", "rounds": 2},
    "answer_from": "solver",
}
HELPER = {"prompt": "do {task}", "action": "{content}", "message_tag": "result", "turns": 3, "level": 1}
ENDLESS = {"adviser": {"*": "actor"}, "actor": {"x": "adviser"}}
LEAD = {"roles": {"lead": {"later_prompt": "{said}"}, "helper": HELPER}, "topology": {"kind": "lead"}}


def play(options: dict[str, Any], *texts: str, policy: type[ScriptedPolicy] | None = None, **more: Any) -> Any:
    said = iter(texts)
    graph, _ = asyncio.run(
        roll_out_scripted(
            worker=TEAM,
            options=build_options(TEAM, options),
            answer=lambda prompt, sampling: next(said),
            environment=Attic,
            n=1,
            tokenizer=CharacterTokenizer(),
            limits=more.pop("limits", Limits(20, 200, 5000)),
            policy=policy,
            **more,
        )
    )
    graph.check()
    return graph


def spoke(graph: Any) -> list[tuple[str, str]]:
    return [(node.agent, node.text) for node in graph.nodes]


def read(graph: Any, place: int) -> list[str]:
    return [message.content for message in graph.nodes[place].messages]


def test_a_verifier_sends_an_answer_back_and_then_approves_it():
    graph = play(LOOP, "four", "no", "left", "I Approve")
    assert [agent for agent, _ in spoke(graph)] == ["solver", "verifier"] * 2
    assert read(graph, 1) == ["check solver: four"] and read(graph, 2) == ["verifier: no"]
    assert [node.valid for node in graph.nodes] == [True] * 4
    assert graph.counts["environment_calls"] == 1


def test_the_answer_is_judged_where_it_was_said():
    graph = play(LOOP, "four", "no", "five", "approve")
    assert [node.valid for node in graph.nodes] == [True, True, False, True]


def test_a_verifier_that_never_approves_is_bounded():
    graph = play(LOOP, *["no"] * 4)
    assert len(graph.nodes) == 4 and graph.episodes[0].error == "worker_stopped"


def test_agents_in_order_act_until_the_environment_ends_it():
    graph = play({"topology": {"each": "step"}}, *["left"] * 6)
    assert [agent for agent, _ in spoke(graph)] == ["adviser", "actor"] * 3
    assert graph.episodes[0].status == "finished" and graph.nodes[3].segment == 1


def test_a_round_table_goes_round():
    roles = {"a": {"sees": []}, "b": {"memory": False}, "c": {"action": "{content}"}}
    graph = play({"roles": roles, "topology": {"kind": "round_table", "rounds": 2}}, "x", "y", "left", "z", "w", "left")
    assert [agent for agent, _ in spoke(graph)] == ["a", "b", "c"] * 2
    assert read(graph, 3) == ["dust | "]
    assert read(graph, 4) == ["task: tidy | dust | a: x | b: y | c: left | a: z".replace("tidy", "do it")]


def test_a_router_names_who_speaks_next():
    roles = {"router": {}, "finder": {"action": "{content}"}, "writer": {"action": "{content}"}}
    options = {"roles": roles, "topology": {"kind": "router", "rounds": 3, "ends": ["writer"]}}
    graph = play(options, "not the writer, the finder", "left", "whom?", "writer", "right")
    assert [agent for agent, _ in spoke(graph)] == ["router", "finder", "router", "router", "writer"]
    assert graph.nodes[2].extra["failure"] == "no_next_role" and not graph.nodes[2].valid


def test_a_graph_goes_by_words():
    edges = {"asker": {"good": "end", "*": "teller"}, "teller": {"*": "asker"}}
    options = {
        "roles": {"asker": {}, "teller": {"action": "{content}"}},
        "topology": {"kind": "graph", "edges": edges, "rounds": 5},
    }
    graph = play(options, "hm", "left", "good")
    assert [agent for agent, _ in spoke(graph)] == ["asker", "teller", "asker"]


def test_a_lead_has_agents_side_by_side():
    texts = (
        "<helper>a</helper><helper>b</helper>",
        "left",
        "<result>B</result>",
        "<result>A</result>",
        "<answer>x</answer>",
    )
    graph = play(LEAD, *texts)
    assert [agent for agent, _ in spoke(graph)] == ["lead", "helper 1", "helper 2", "helper 1", "lead"]
    assert read(graph, 1) == ["do a"] and read(graph, 4) == ["helper: A | helper: B"]
    assert [node.plan for node in graph.nodes] == [-1, 0, 0, 0, -1]
    assert [node.level for node in graph.nodes] == [0, 1, 1, 1, 0]
    assert [node.extra["access_calls"] for node in graph.nodes] == [0, 1, 0, 0, 0]


class Watching(ScriptedPolicy):
    """Counts requests under way; its answers depend on the prompt alone."""

    now = most = 0

    async def generate(self, prompt, sampling, conversation):
        cls = type(self)
        cls.now += 1
        cls.most = max(cls.most, cls.now)
        await asyncio.sleep(0.001)
        cls.now -= 1
        return await super().generate(prompt, sampling, conversation)


def test_the_turns_of_agents_are_generated_at_the_same_time():
    Watching.most = 0
    tasks = "".join(f"<helper>{word}</helper>" for word in "abcde")

    def answer(prompt, sampling):
        return (
            tasks
            if prompt.startswith("task") and "helper" not in prompt
            else ("<answer>x</answer>" if "helper:" in prompt else "<result>done</result>")
        )

    graph, _ = asyncio.run(
        roll_out_scripted(
            worker=TEAM, options=build_options(TEAM, LEAD), answer=answer, environment=Attic, n=1,
            tokenizer=CharacterTokenizer(), limits=Limits(20, 200, 5000), policy=Watching,
        )
    )  # fmt: skip
    assert Watching.most == 5 and len(graph.nodes) == 7


def test_an_agent_that_repeats_itself_or_runs_out_of_turns_is_flagged():
    long = {**LEAD, "roles": {**LEAD["roles"], "helper": {**HELPER, "turns": 2}}}
    graph = play(LEAD, "<helper>a</helper>", "left", "left", "<answer>x</answer>")
    assert graph.nodes[2].extra["repeat_failed"] == 1 and graph.nodes[2].extra["limit_failed"] == 0
    graph = play(long, "<helper>a</helper>", "left", "right", "<answer>x</answer>")
    assert graph.nodes[2].extra["limit_failed"] == 1 and read(graph, 3) == ["helper: dust"]


def test_an_agent_whose_context_is_full_does_not_end_the_episode():
    limits = Limits(20, 200, 100)
    graph = play(LEAD, "<helper>a</helper>", "x" * 94, "<answer>y</answer>", limits=limits)
    assert graph.nodes[1].extra["limit_failed"] == 1 and graph.nodes[2].text == "<answer>y</answer>"


def test_a_lead_without_an_answer_is_flagged():
    options = {**LEAD, "topology": {"kind": "lead", "rounds": 2}}
    graph = play(options, "<helper>a</helper>", "<result>A</result>", "<helper>b</helper>")
    assert graph.nodes[2].extra["limit_failed"] == 1
    graph = play(LEAD, "well")
    assert graph.nodes[0].extra == {
        "format": 0, "access_calls": 0, "limit_failed": 0, "repeat_failed": 0, "answered": 0, "failure": "no_tag",
        "rates": 0, "share": 0.5,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"topology": {"order": ["advisor", "actor"]}}, r"order: there is no role 'advisor' \(did you mean 'adviser'"),
        ({"answer_from": "judge"}, "answer_from: there is no role 'judge'"),
        ({"roles": {"a": {"action": "x", "sees": ["b"]}}}, "roles.a.sees: there is no role 'b'"),
        ({"topology": {"kind": "round_table"}}, "topology.rounds: adviser → actor → adviser never ends"),
        ({"topology": {"kind": "graph", "edges": ENDLESS}}, "never ends"),
        ({"topology": {"order": ["actor"]}}, "roles: adviser has nothing to do in this sequence"),
        ({"roles": {"a": {}}}, "roles: nobody acts"),
        ({"roles": {"a": {}}, "topology": {"kind": "lead"}}, "lead needs at least two roles"),
        ({"roles": {"answer": {}}}, "'answer' cannot be the name of a role"),
        ({"roles": {}}, "roles must name at least one role"),
    ],
)  # fmt: skip
def test_what_cannot_be_played_is_refused_in_a_sentence(options, sentence):
    with pytest.raises(HierError, match=sentence) as refused:
        build_options(TEAM, options)
    assert re.search(r"hier\.worker", str(refused.value)) and "\n" not in str(refused.value)
