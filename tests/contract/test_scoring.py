"""verl's reward function is asked about each episode by the row of its leaf, and its numbers and texts are kept."""

from __future__ import annotations

import asyncio
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.fixtures.agent_loop_worker import idle_worker
from tests.fixtures.executed_lines import executed_lines
from tests.fixtures.random_graphs import many_turns, random_graph
from verl_hier.errors import RolloutError
from verl_hier.graph import EpisodeRecord, Node, RolloutGraph, graph_rows

pytest.importorskip("verl_hier.compat.agent_loop")


def score(graph, said=lambda output: 2.0, info=None):
    """Let every leaf be scored; returns the outputs that were scored."""
    worker = idle_worker()
    scored = []

    async def compute(outputs, kwargs):
        scored.extend(outputs)
        outputs[0].reward_score = said(outputs[0])
        outputs[0].extra_fields["reward_extra_info"] = info or {}

    worker._compute_score = compute
    worker.texts = asyncio.run(worker._score(graph, {}))
    scored.append(worker) if info is not None else None
    return scored


def fresh_contexts(episodes):
    """Episodes of four turns, each of which starts a context and so makes a row of its own."""
    graph = many_turns(episodes, 4)
    graph.task["index"] = 0
    for node in graph.nodes:
        node.context, node.prompt_tokens = -1, 0
    return graph


def test_the_last_row_of_each_episode_is_scored():
    graph = fresh_contexts(4)
    last = {row.episode: row.response for row in graph_rows(graph, lambda node: True)}
    assert [output.response_ids for output in score(graph)] == list(last.values())
    assert {graph.nodes[episode.leaf].reward for episode in graph.episodes} == {2.0}
    assert [episode.ret for episode in graph.episodes] == [2.0] * 4


def test_leaves_are_scored_side_by_side():
    graph, under_way, all_there = fresh_contexts(4), [], asyncio.Event()
    worker = idle_worker()

    async def compute(outputs, kwargs):
        under_way.append(outputs[0])
        if len(under_way) == 4:
            all_there.set()
        await asyncio.wait_for(all_there.wait(), 60)
        outputs[0].reward_score = float(len(under_way))

    worker._compute_score = compute
    asyncio.run(worker._score(graph, {}))
    assert [episode.ret for episode in graph.episodes] == [4.0] * 4


def test_a_score_that_raises_leaves_no_other_one_under_way():
    worker, ended = idle_worker(), []

    async def compute(outputs, kwargs):
        if not ended:
            ended.append("raised")
            raise RuntimeError("the judge is away")
        await asyncio.sleep(0.01)
        ended.append("scored")
        outputs[0].reward_score = 1.0

    worker._compute_score = compute
    with pytest.raises(RuntimeError, match="the judge is away"):
        asyncio.run(worker._score(fresh_contexts(3), {}))
    assert ended == ["raised", "scored", "scored"]


def test_scoring_costs_as_much_for_each_episode_of_more():
    little, much = (executed_lines(score, fresh_contexts(episodes)) for episodes in (8, 32))
    assert much <= 4.1 * little


def ends_with(output, node):
    """Whether a row's last action is that of a node."""
    return output.response_ids[len(output.response_ids) - len(node.action) :] == node.action


@pytest.mark.parametrize("seed", range(300))
def test_every_complete_episode_has_the_score_of_its_leaf(seed):
    graph = random_graph(seed)
    before = {node.id: node.reward for node in graph.nodes}
    ended = [*graph.complete()]
    scored = score(graph)
    leaves = list(dict.fromkeys(episode.leaf for episode in ended))
    assert len(scored) == len(leaves)
    assert all(ends_with(output, graph.nodes[leaf]) for output, leaf in zip(scored, leaves, strict=True))
    assert {node.id: node.reward for node in graph.nodes} == {
        number: reward + 2.0 * (number in leaves) for number, reward in before.items()
    }
    for episode in ended:
        assert episode.ret == sum(graph.nodes[i].reward for i in graph.path(episode.id))


def lead_and_helper():
    """A lead asks, a helper answers in a context of its own, and the lead says the last word in its first context."""
    graph = RolloutGraph(task={"uid": "u", "index": 0})
    graph.episodes.append(EpisodeRecord(0, status="finished"))
    for role, context, word in (("lead", -1, 11), ("helper", -1, 22), ("lead", 0, 33)):
        add_turn(graph, graph.episodes[0], role, context, word)
    return graph


def add_turn(graph, record, role, context, word):
    number = len(graph.nodes)
    graph.nodes.append(
        Node(
            id=number, parent=record.leaf, context=context, episode=record.id, agent=role, role=role, level=0,
            turn=len(graph.path(record.id)), segment=0, plan=-1, observation=[1], action=[word], logprobs=[-0.5],
        )
    )  # fmt: skip
    record.leaf = number


def test_the_last_word_of_the_lead_is_scored_and_not_the_context_that_was_opened_last():
    graph = lead_and_helper()
    (output,) = score(graph, lambda output: float(output.response_ids[-1] == 33))
    assert output.response_ids == [11, 1, 33] and graph.episodes[0].ret == 1.0


def test_what_is_not_trained_is_scored_as_well():
    graph = lead_and_helper()
    for node in graph.nodes:
        node.trained = False
    score(graph, lambda output: float(output.response_ids[-1] == 33))
    assert graph.episodes[0].ret == 1.0


def test_episodes_that_share_a_leaf_share_its_return():
    graph = lead_and_helper()
    graph.episodes.append(EpisodeRecord(1, status="finished", source=0, shared=3, leaf=2))
    assert len(score(graph, lambda output: 1.0)) == 1
    assert [episode.ret for episode in graph.episodes] == [1.0, 1.0]


NUMBERS = (
    *(np.float32(0.5), np.int64(3), np.bool_(True), np.array(4.0), np.float16(2), torch.tensor(2.5)),
    *(Decimal("0.25"), Fraction(1, 8), True, 7, 1.5),
)


@given(
    st.dictionaries(st.text(max_size=5), st.sampled_from(NUMBERS), max_size=5),
    st.dictionaries(st.text(max_size=5).map(lambda name: f"text {name}"), st.text(max_size=5), max_size=3),
    st.dictionaries(
        st.text(max_size=5).map(lambda name: f"other {name}"),
        st.sampled_from([None, [1.0], {"a": 1}, np.ones(2), float("nan"), np.float32("inf"), 10**400]),
        max_size=3,
    ),
)
def test_numbers_of_any_type_and_texts_are_kept(numbers, texts, others):
    graph = lead_and_helper()
    worker = score(graph, info={**numbers, **texts, **others})[-1]
    found = graph.episodes[0].reward_info
    assert found == {name: float(value) for name, value in numbers.items()}
    assert all(type(value) is float for value in found.values()) and worker.texts == {0: texts}
    (row,) = [row for row in graph_rows(graph, lambda node: True) if graph.episodes[0].leaf in row.nodes]
    told = worker._output(graph, row, False, worker.texts[0]).extra_fields["reward_extra_info"]
    assert told.items() >= {**found, **texts}.items()


@pytest.mark.parametrize("said", NUMBERS)
def test_a_score_may_be_any_number(said):
    graph = lead_and_helper()
    score(graph, lambda output: said)
    assert graph.episodes[0].ret == float(said) and type(graph.episodes[0].ret) is float


@pytest.mark.parametrize("said", ["0.5", float("nan"), np.float32("inf"), [1.0], 10**400, np.ones(1)])
def test_a_score_that_is_no_number_is_a_sentence(said):
    with pytest.raises(
        RolloutError,
        match=r"^reward\.custom_reward_function: the reward function returned the score .*, which is no number",
    ):
        score(lead_and_helper(), lambda output: said)
