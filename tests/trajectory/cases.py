"""Rollout graphs for the tests: rolled out by a scripted policy in a corridor, or random trees put together by hand."""

from __future__ import annotations

import asyncio
import itertools
import random
from pathlib import Path

from hypothesis import strategies as st

from tests.rollout.conftest import Corridor
from verl_hier.graph import EpisodeRecord, Message, Node, RolloutGraph
from verl_hier.host.specs import NoOptions
from verl_hier.rollout import Sampler
from verl_hier.testing.rollout import roll_out_scripted
from verl_hier_plugins.samplers.independent import Independent
from verl_hier_plugins.samplers.nested import Nested, NestedOptions
from verl_hier_plugins.workers.planner_executor import PlannerExecutor, PlannerExecutorOptions
from verl_hier_plugins.workers.react import React, ReactOptions

GOLDEN = Path(__file__).with_name("golden_v3.jsonl")
OLDER = {version: Path(__file__).with_name(f"golden_v{version}.jsonl") for version in (1, 2)}


def answer(prompt: str, sampling) -> str:
    """A blueprint for the planner, mostly `right` for everybody else; greedy turns never err."""
    chance = random.Random(sampling.seed)
    if prompt.startswith("plan"):
        return "go ; go on" if chance.random() < 0.5 else "go"
    return "right" if sampling.temperature == 0 or chance.random() < 0.7 else "left"


class Forks(Sampler):
    """One episode, and a fork of it after each of its turns."""

    async def sample(self, rollout):
        trunk = await rollout.start().run()
        for shared in range(1, len(trunk.path) + 1):
            await (await trunk.fork(after=shared, why="test")).run()


def _roll_out(worker, sampler, **options) -> RolloutGraph:
    graph, _ = asyncio.run(
        roll_out_scripted(environment=Corridor, worker=worker, sampler=sampler, answer=answer, **options)
    )
    return graph


def flat(**options) -> RolloutGraph:
    """Independent episodes of one agent with one growing context."""
    return _roll_out(lambda: React(ReactOptions()), Independent(NoOptions()), **{"n": 2, **options})


def windowed() -> RolloutGraph:
    """Independent episodes of one agent with a new context each turn."""
    return _roll_out(lambda: React(ReactOptions(history=1)), Independent(NoOptions()), n=2)


def forked() -> RolloutGraph:
    """A tree."""
    return _roll_out(lambda: React(ReactOptions()), Forks(), seed=5)


def hierarchical(**options) -> RolloutGraph:
    """Blueprints tried greedily, the best one executed."""
    worker = PlannerExecutorOptions(subgoal_turns=2)
    sampler = Nested(NestedOptions(plans=3))
    return _roll_out(lambda: PlannerExecutor(worker), sampler, **{"n": 2, "seed": 3, **options})


def broken() -> RolloutGraph:
    """A world that loses episodes."""
    graph, _ = asyncio.run(
        roll_out_scripted(
            environment=lambda: Corridor(3, break_at=2),
            worker=lambda: React(ReactOptions()),
            sampler=Independent(NoOptions()),
            answer=answer,
            n=3,
        )
    )
    return graph


ROLLED_OUT = {"flat": flat, "windowed": windowed, "forked": forked, "hierarchical": hierarchical, "broken": broken}


def golden() -> list[RolloutGraph]:
    """What the golden file holds; every field differs from its default somewhere."""
    first, second, third = golden_v2()
    first.nodes[1].policy = "executor"
    first.episodes[0].reward_info = {"accuracy": 1.0}
    first.seconds = {"rollout": 1.5}
    return [first, second, third]


def golden_v2() -> list[RolloutGraph]:
    """What the file of schema version 2 holds."""
    first, second, third = flat(step=1), hierarchical(step=2), broken()
    first.nodes[0].masks = {"switch": [[0, 1]]}
    first.nodes[0].extra = {"judge": 0.5, "tag": "look"}
    first.nodes[0].policy_version = [3, 4]
    first.nodes[1].entropy = [0.5] * len(first.nodes[1].action)
    first.nodes[1].top = [[[3, -0.1], [4, -2.5]]] * len(first.nodes[1].action)
    first.budget = {"tokens": [10.0, 64.0]}
    first.credit = [0.25 * node.id for node in first.nodes]
    second.phase = {"name": "B", "levels": [1], "roles": None}
    second.task |= {"data_source": "corridor", "instruction": "go ↦ end"}
    third.seed = None
    return [first, second, third]


ROLES = (("planner", 0), ("executor", 1))
EVERY_STATUS = ("finished", "finished", "truncated", "failed", "pruned")


@st.composite
def trees(draw, uid: str = "u") -> RolloutGraph:
    """A random graph that `check` accepts; no two tokens are equal, so that equal sequences mean equal turns."""
    graph = RolloutGraph(task={"uid": uid, "index": 0})
    fresh = itertools.count()
    for number in range(draw(st.integers(1, 5))):
        record = EpisodeRecord(number, status=draw(st.sampled_from(EVERY_STATUS)), trained=draw(st.booleans()))
        if number and draw(st.booleans()):
            record.source = draw(st.integers(0, number - 1))
            path = graph.path(record.source)
            record.shared = draw(st.integers(0, len(path)))
            record.tree = graph.episodes[record.source].tree
            record.leaf = path[record.shared - 1] if record.shared else -1
        else:
            record.tree = 1 + max((episode.tree for episode in graph.episodes), default=-1)
        graph.episodes.append(record)
        for _ in range(draw(st.integers(0, 4))):
            _grow(draw, graph, record, fresh)
        record.ret = sum(graph.nodes[i].reward for i in graph.path(number))
    graph.check()
    return graph


def _grow(draw, graph: RolloutGraph, record: EpisodeRecord, fresh) -> None:
    path = graph.path(record.id)
    context = draw(st.sampled_from([-1, *path]))
    role, level = draw(st.sampled_from(ROLES))
    action = list(itertools.islice(fresh, draw(st.integers(1, 3))))
    node = Node(
        id=len(graph.nodes),
        parent=record.leaf,
        context=context,
        episode=record.id,
        agent=role,
        role=role,
        level=level,
        turn=len(path),
        segment=0,
        plan=draw(st.sampled_from([-1, *path])),
        observation=list(itertools.islice(fresh, draw(st.integers(int(context < 0), 2)))),
        action=action,
        logprobs=draw(st.sampled_from([[], [-0.5 - token for token in action]])),
        trained=draw(st.booleans()),
        reward=draw(st.sampled_from([0.0, 1.0, -0.25])),
        text=f"says {len(graph.nodes)}",
        messages=draw(st.lists(_messages(path), min_size=int(context < 0), max_size=2)),
    )
    graph.nodes.append(node)
    node.prompt_tokens = len(graph.prompt(node.id))
    record.leaf = node.id


def _messages(path: list[int]):
    """Messages that carry words of some turns of a path."""
    sources = st.lists(st.sampled_from(path), unique=True, max_size=2) if path else st.just([])
    return st.builds(Message, st.sampled_from(["system", "user", "tool"]), st.sampled_from(["go", "é 🙂\n"]), sources)
