"""Who saw what in real rollouts: of each worker with several agents, in forks, in pieces, and after a step boundary."""

from __future__ import annotations

import asyncio
import random
from types import SimpleNamespace

import pytest

from tests.fixtures.corridor import Corridor
from verl_hier.graph import RolloutGraph, conversation, messages, who_saw
from verl_hier.host.specs import NoOptions
from verl_hier.rollout import EndReason, Sampler, Worker
from verl_hier.rollout.plain_renderer import PlainRenderer
from verl_hier.rollout.prompts import source_nodes
from verl_hier.rollout.recorded_policy import differences
from verl_hier.rollout.unfinished import UnfinishedEpisode
from verl_hier.testing.rollout import CharacterTokenizer, WordTokenizer, roll_out_scripted
from verl_hier_plugins.samplers.independent import Independent
from verl_hier_plugins.workers.agent_flow import AgentFlow, AgentFlowOptions
from verl_hier_plugins.workers.delegation import AgentOptions, DelegationOptions
from verl_hier_plugins.workers.delegation.worker import Delegation
from verl_hier_plugins.workers.designer_executor.options import DesignerExecutorOptions
from verl_hier_plugins.workers.designer_executor.worker import DesignerExecutor
from verl_hier_plugins.workers.dual_loop import DualLoop, DualLoopOptions
from verl_hier_plugins.workers.planner_executor import PlannerExecutor, PlannerExecutorOptions
from verl_hier_plugins.workers.react import React, ReactOptions


def rolled_out(worker, answer, sampler=None, length=3, tokenizer=None, **options) -> RolloutGraph:
    told = answer if callable(answer) else lambda prompt, sampling, turns=iter(answer): next(turns)
    graph, policy = asyncio.run(
        roll_out_scripted(
            environment=lambda: Corridor(length),
            worker=worker,
            sampler=sampler or Independent(NoOptions()),
            answer=told,
            tokenizer=tokenizer or WordTokenizer(),
            **{"n": 1, **options},
        )
    )
    check_words(graph, policy.tokenizer)
    return graph


def check_words(graph: RolloutGraph, tokenizer) -> None:
    """Messages are what the observation says, and a carried turn lies on the path of who hears it."""
    for node in graph.nodes:
        said = "".join("".join(message.content for message in node.messages).split())
        assert said == "".join(tokenizer.decode([t for t in node.observation if t != 2]).split())
        path = []
        before = node.parent
        while before >= 0:
            path.append(before)
            before = graph.nodes[before].parent
        assert {source for message in node.messages for source in message.sources} <= set(path)


def test_the_executor_saw_the_plan_and_the_planner_nobody():
    turns = ["one ; two", "right", "<sub_done>", "right", "right"]
    graph = rolled_out(lambda: PlannerExecutor(PlannerExecutorOptions()), turns)
    assert [node.role for node in graph.nodes] == ["planner", *["executor"] * 4]
    assert who_saw(graph, 0) == [1, 2, 3, 4]
    assert messages(graph) == [(0, 1), (0, 3)]
    assert who_saw(graph, 1) == [2] and who_saw(graph, 2) == [], "the next subgoal has a context of its own"
    assert [message.content for message in graph.nodes[3].messages] == ["goal: two | at 1"]


def test_an_executor_whose_prompt_names_no_plan_saw_none():
    options = PlannerExecutorOptions(executor_prompt="{observation}", executor_system="act")
    graph = rolled_out(lambda: PlannerExecutor(options), ["one", "right", "right", "right"])
    assert who_saw(graph, 0) == [] == messages(graph)
    assert [message.role for message in graph.nodes[1].messages] == ["system", "user"]


def test_the_dual_loop_shows_plans_downwards_and_tries_to_the_refiner():
    options = DualLoopOptions(router="refiner", tries=2)
    turns = ["first", "left", "strategic", "second", "right", "tactical", "right"]
    graph = rolled_out(lambda: DualLoop(options), turns, length=2)
    roles = [node.role for node in graph.nodes[:6]]
    assert roles == ["planner", "executor", "refiner", "planner", "executor", "refiner"]
    assert messages(graph)[:6] == [(0, 1), (0, 2), (1, 2), (3, 4), (3, 5), (4, 5)]
    assert who_saw(graph, 0) == [1, 2, 3], "and what the planner says next"


def test_reports_and_tasks_of_a_delegation():
    options = DelegationOptions(agents={"walker": AgentOptions(prompt="do: {task}", turns=3)}, max_tasks=2)
    turns = [
        *("<walker>go</walker>", "right", "<result>went</result>"),
        *("<walker>on</walker>", "right", "right", "<answer>there</answer>"),
    ]
    graph = rolled_out(lambda: Delegation(options), turns, tokenizer=CharacterTokenizer())
    assert [node.role for node in graph.nodes] == ["planner", "executor", "executor", "planner", "executor", "executor"]
    assert messages(graph) == [(0, 1), (2, 3), (3, 4)]
    assert who_saw(graph, 2) == [3] and who_saw(graph, 1) == [2]


def test_a_refined_report_is_the_refiners():
    agents = {"walker": AgentOptions(prompt="do: {task}", turns=3)}
    options = DelegationOptions(agents=agents, max_tasks=1, refine=True)
    turns = ["<walker>go</walker>", "<result>went</result>", "well", "<answer>there</answer>"]
    graph = rolled_out(lambda: Delegation(options), turns, tokenizer=CharacterTokenizer())
    assert [node.role for node in graph.nodes] == ["planner", "executor", "refiner", "planner"]
    assert {(0, 1), (1, 2), (2, 3)} <= set(messages(graph)) <= {(0, 1), (0, 2), (1, 2), (2, 3)}
    assert who_saw(graph, 1) == [2]


def test_modules_of_a_flow_see_the_memory_that_is_left():
    options = AgentFlowOptions(verifier=False, steps=3)
    turns = ["go", "right", "on", "right", "end", "right"]
    graph = rolled_out(lambda: AgentFlow(options), turns)
    assert messages(graph) == [(0, 1), (1, 2), (2, 3), (1, 4), (3, 4), (4, 5)]
    short = AgentFlowOptions(verifier=False, steps=3, memory_characters=len("right > at 2"))
    graph = rolled_out(lambda: AgentFlow(short), turns)
    assert messages(graph) == [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5)], "the first step has left the memory"


def test_a_design_and_what_its_roles_tell_each_other():
    design = 'walker = Role("walk", tools=["act"], turns=1)\njudge = Role("say")\nw = walker("go")\njudge(w)\nsolver()'
    options = DesignerExecutorOptions(executor_prompt="{role} {brief}: {order} | {observation}", turns=1)
    turns = [design, "right", "good", "right"]
    graph = rolled_out(lambda: DesignerExecutor(options), turns, tokenizer=CharacterTokenizer())
    assert [node.agent for node in graph.nodes] == ["designer", "walker", "judge", "solver"]
    assert messages(graph) == [(0, 1), (0, 2), (1, 2)], "the recipe's own role, called without a word, heard nothing"


# ---- forks, pieces, steps --------------------------------------------------------------------------------------------


class Branching(Sampler):
    """A trunk, a fork after each turn, one inside of a turn, and one turn in pieces."""

    async def sample(self, rollout):
        trunk = await rollout.start().run()
        for shared in range(1, len(trunk.path) + 1):
            await (await trunk.fork(after=shared)).run()
        rollout.split(rollout.graph.nodes[trunk.path[0]], 2)
        await (await trunk.fork(after=1)).run()
        pieces = rollout.start()
        await pieces.step(2)
        await pieces.run()


def branched(seed: int, tokenizer: WordTokenizer | None = None) -> RolloutGraph:
    def answer(prompt, sampling):
        chance = random.Random(sampling.seed)
        if "goal" not in prompt:
            return chance.choice(["one ; two", "up ; down ; up"])
        return chance.choice(["right", "right", "left", "<sub_done>"])

    options = PlannerExecutorOptions(subgoal_turns=2)
    return rolled_out(lambda: PlannerExecutor(options), answer, Branching(), n=20, seed=seed, tokenizer=tokenizer)


@pytest.mark.parametrize("seed", range(6))
def test_every_path_of_a_tree_heard_its_own_plan(seed):
    graph = branched(seed)
    partial = [node.id for node in graph.nodes if node.partial]
    assert len(partial) >= 2
    for node in graph.nodes:
        if node.role != "executor":
            continue
        plan = [piece.id for piece in graph.pieces(graph.nodes[node.plan])]
        assert all(node.id in who_saw(graph, piece) for piece in plan)
        planners = {other.id for other in graph.nodes if other.role == "planner"} - set(plan)
        assert not any(node.id in who_saw(graph, other) for other in planners)
        if node.context < 0:
            assert [message.sources for message in node.messages] == [[node.plan]]
            goal = node.messages[0].content.removeprefix("goal: ").partition(" | ")[0]
            assert goal in "".join(graph.nodes[piece].text for piece in plan).split(" ; ")
    heads = {(node.plan, node.id) for node in graph.nodes if node.role == "executor" and node.context < 0}
    assert set(messages(graph)) == heads


@pytest.mark.parametrize("seed", range(6))
def test_the_texts_of_pieces_are_the_text_of_the_turn(seed):
    tokenizer = WordTokenizer()
    graph = branched(seed, tokenizer)
    whole = [graph.pieces(node) for node in graph.nodes if not node.partial]
    assert any(len(pieces) > 1 for pieces in whole)
    for pieces in whole:
        text = PlainRenderer(tokenizer).decode([token for piece in pieces for token in piece.action])
        assert "".join(piece.text for piece in pieces) == text
        assert conversation(graph, pieces[-1].id)[-1] == {"role": "assistant", "content": text}


def test_half_a_character_belongs_to_the_piece_that_ends_it(tmp_path):
    from transformers import AutoTokenizer

    from tests.fixtures.byte_model import write_byte_model
    from verl_hier.chat.renderer import ChatRenderer
    from verl_hier.rollout.turns import text_of

    tokenizer = AutoTokenizer.from_pretrained(write_byte_model(tmp_path))
    renderer = ChatRenderer(tokenizer, "qwen2", {})
    whole = "a é 🙂 b"
    tokens = tokenizer.encode(whole, add_special_tokens=False)
    for first in range(1, len(tokens)):
        for second in range(first + 1, len(tokens)):
            places = [(0, first), (first, second), (second, len(tokens))]
            parts = [text_of(renderer, tokens[:a], tokens[a:b], b < len(tokens)) for a, b in places]
            assert "".join(parts) == whole


def test_what_verl_puts_in_front_of_a_message_is_rendered_once(tmp_path, monkeypatch):
    pytest.importorskip("verl")
    from transformers import AutoTokenizer
    from verl.utils.tokenizer.continuous_token_wiring import create_continuous_token_builder

    from tests.fixtures.byte_model import write_byte_model
    from verl_hier.chat.renderer import ChatRenderer

    tokenizer = AutoTokenizer.from_pretrained(write_byte_model(tmp_path))
    verls = create_continuous_token_builder(tokenizer, hf_model_type="qwen2", chat_template_kwargs={})
    ours, rendered = ChatRenderer(tokenizer, "qwen2", {}), []
    assert ours.template.takes_tools, "asked once for each renderer"
    template = type(tokenizer).apply_chat_template

    def counted(self, messages, **options):
        rendered.append(len(messages))
        return template(self, messages, **options)

    history = [{"role": "user", "content": "hello"}]
    tokens = other = ours.render([], [], history)
    for number, role in enumerate(("user", "tool", "user", "tool", "user")):
        said = [*history, {"role": "assistant", "content": f"a{number}"}]
        heard = {"role": role, "content": f"seen {number}"}
        answer = [*tokenizer.encode(f"a{number}", add_special_tokens=False), tokenizer.eos_token_id]
        tokens, other = tokens + answer, list(other) + answer
        other = verls.merge_context_tokens(said, [*said, heard], other).token_ids
        monkeypatch.setattr(type(tokenizer), "apply_chat_template", counted)
        tokens = ours.render(tokens, said, [heard])
        monkeypatch.undo()
        assert tokens == list(other)
        history = [*said, heard]
    assert len(rendered) == 5 + 1, "a message each, and what stands in front of a tool's once"


def test_what_a_later_step_goes_on_with_is_heard_anew():
    class Leave(Sampler):
        async def sample(self, rollout):
            episode = rollout.start()
            await episode.step()
            await episode.step()
            episode.discard(EndReason.LEFT_UNFINISHED)
            await rollout.start().run()

    class Resume(Sampler):
        async def sample(self, rollout):
            await rollout.start().run()
            for old in rollout.unfinished:
                await rollout.resume(old).run()

    def answer(prompt, sampling):
        return "right" if "goal" in prompt else "one ; two"

    def worker() -> Worker:
        return PlannerExecutor(PlannerExecutorOptions())

    tokenizer = WordTokenizer()
    left = rolled_out(worker, answer, Leave(), tokenizer=tokenizer)
    old = tuple(UnfinishedEpisode.left_in(left))
    graph = rolled_out(worker, answer, Resume(), tokenizer=tokenizer, step=2, unfinished=old)
    plans = [node.id for node in graph.nodes if node.role == "planner"]
    assert len(plans) == 2
    for plan in plans:
        mine = [node.id for node in graph.nodes if node.plan == plan]
        assert len(mine) == 3 and who_saw(graph, plan) == mine


def test_a_replay_of_a_graph_of_version_1_is_still_the_same():
    turns = ["one", "right", "right", "right"]
    stored = rolled_out(lambda: PlannerExecutor(PlannerExecutorOptions()), turns)
    again = rolled_out(lambda: PlannerExecutor(PlannerExecutorOptions()), turns)
    again.nodes[1].messages[0].sources = []
    assert differences(stored, again) == ["nodes[1].messages[0].sources"]
    for node in stored.nodes:
        node.messages = []
    assert differences(stored, again) == []


def test_windowed_contexts_keep_their_messages():
    graph = rolled_out(lambda: React(ReactOptions(history=1)), ["right"] * 3)
    assert messages(graph) == [] and all(node.messages for node in graph.nodes)


def test_fields_that_a_template_uses():
    plan, report = SimpleNamespace(node=0), SimpleNamespace(node=1)
    turns = {"plan": [plan], "report": [report]}
    assert source_nodes("{plan} {x}", turns) == [plan.node]
    assert source_nodes("{report[0]} {plan!r:>3}", turns) == [plan.node, report.node]
    assert source_nodes("{{plan}}", turns) == []
