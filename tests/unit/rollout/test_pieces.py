"""Branching inside turns: pieces, cuts, forced tokens, and the world that a fork starts from."""

from __future__ import annotations

import pytest

from tests.fixtures.corridor import Corridor
from verl_hier.errors import GraphError
from verl_hier.graph import build_table, graph_rows
from verl_hier.rollout import Limits, Sampler, Scored, Worker
from verl_hier.rollout.entropy import EntropyOptions, top_entropy
from verl_hier.testing.rollout import ScriptedPolicy, WordTokenizer, roll_out_scripted
from verl_hier_plugins.workers.react import React, ReactOptions


class Sampled(Sampler):
    """Runs a function as a sampler."""

    def __init__(self, body):
        self._body = body

    async def sample(self, rollout):
        await self._body(rollout)


def roll(run, body, answer=lambda prompt, sampling: "right", **options):
    graph, policy = run(
        roll_out_scripted(
            environment=lambda: Corridor(2),
            worker=options.pop("worker", lambda: React(ReactOptions())),
            sampler=Sampled(body),
            answer=answer,
            n=1,
            **options,
        )
    )
    return graph, policy


class Reads(ScriptedPolicy):
    """Reads tokens with another log p than it samples them with."""

    async def score(self, prompt, tokens, conversation, top=0, temperature=1.0) -> Scored:
        return Scored([-3.0] * len(tokens), version=(7, 8))


def words(prompt: str, sampling) -> str:
    """Goes on counting from where the prompt ends, to five."""
    last = prompt.split()[-1]
    order = ["one", "two", "three", "four", "five"]
    start = order.index(last) + 1 if last in order else 0
    return " ".join(order[start:])


def test_a_turn_in_pieces_is_one_turn_for_worker_and_world(run):
    async def body(rollout):
        episode = rollout.start()
        while not episode.over and len(episode.path) < 6:
            await episode.step(tokens=2)

    graph, policy = roll(run, body, words)
    first = graph.nodes[:3]
    assert [n.partial for n in first] == [True, True, False]
    assert [n.turn for n in first] == [0, 0, 0] and graph.nodes[3].turn == 1
    assert [len(n.action) for n in first] == [2, 2, 2]
    assert [n.anchor for n in first] == ["0", None, None]
    assert [n.valid for n in first] == [True, True, False] and first[2].reward == -0.1
    assert graph.counts["environment_calls"] == 2
    assert sorted(policy.prompts) == sorted(graph.prompt(n.id) for n in graph.nodes)


def test_the_pieces_of_a_turn_have_no_more_tokens_than_a_whole_one(run):
    async def body(rollout):
        episode = rollout.start()
        while not episode.over and len(episode.path) < 4:
            await episode.step(tokens=2)

    graph, _ = roll(run, body, words, limits=Limits(max_tokens_per_turn=3))
    assert [len(node.action) for node in graph.nodes] == [2, 1, 2, 1]
    assert [node.stop_reason for node in graph.nodes[1::2]] == ["length", "length"]


@pytest.mark.parametrize("tokens", [2, None], ids=["inside a turn", "between turns"])
def test_a_fork_of_a_fork_that_has_not_gone_on_shares_as_much(run, tokens):
    async def body(rollout):
        trunk = rollout.start()
        await trunk.step(tokens=tokens)
        twin = await trunk.fork()
        late = await twin.fork()
        assert twin.path == late.path == trunk.path
        await rollout.advance([late, twin])
        assert late.path[0] == twin.path[0] == trunk.path[0] and late.path[1] != twin.path[1]
        for episode in rollout.episodes:
            episode.stop("enough")

    graph, _ = roll(run, body, words)
    first, second, third = graph.nodes
    assert first.partial == (tokens is not None) and second.parent == third.parent == first.id
    assert graph.prompt(second.id) == graph.prompt(third.id), "neither begins again with a prompt of its own"
    assert graph.prompt(third.id)[: len(graph.prompt(first.id))] == graph.prompt(first.id)


def test_a_fork_inside_a_turn_shares_its_first_piece(run):
    async def body(rollout):
        trunk = rollout.start()
        await trunk.step(tokens=2)
        twin = await trunk.fork(why="inside")
        await rollout.advance([trunk, twin])
        assert twin.path[0] == trunk.path[0] and twin.path[1] != trunk.path[1]
        for episode in (trunk, twin):
            episode.stop("enough")

    graph, _ = roll(run, body, words)
    assert [n.partial for n in graph.nodes] == [True, False, False]
    rows = graph_rows(graph, lambda node: True)
    assert [sum(row.mask) for row in rows] == [6, 4]
    assert [e.status for e in graph.episodes] == ["truncated", "truncated"]
    table = build_table([graph])
    assert table["turn"].tolist() == [0, 0, 0] and table["depth"].tolist() == [0, 1, 1]
    assert table["leaves"].tolist() == [2, 1, 1]


@pytest.mark.parametrize("at", [1, 3])
def test_a_cut_leaves_tokens_paths_and_forks_as_they_were(run, at):
    seen = {}

    async def body(rollout):
        trunk = await rollout.start().run(turns=2)
        early = await trunk.fork(after=1)
        node = rollout.graph.nodes[trunk.path[0]]
        before = rollout.graph.prompt(trunk.path[1])
        first = rollout.split(node, at)
        assert (first.id, node.id) == (0, 1) and trunk.path == [0, 1, 2] and early.path == [0, 1]
        assert rollout.graph.prompt(trunk.path[2]) == before
        assert trunk.boundaries == [0, 2, 3]
        inside = await trunk.fork(after=1, why="cut")
        await rollout.run([early, inside, trunk])
        seen["inside"] = inside.id

    graph, _ = roll(run, body, words, limits=None)
    inside = graph.path(seen["inside"])
    assert inside[0] == 0 and graph.nodes[inside[1]].context == 0 and not graph.nodes[inside[1]].observation
    for episode in graph.complete():
        last = graph.path(episode.id)[-1]
        tokens = graph.prompt(last) + graph.nodes[last].action
        assert sum(len(graph.nodes[i].observation) + len(graph.nodes[i].action) for i in graph.path(episode.id)) == len(
            tokens
        )


def test_a_cut_keeps_what_stands_on_the_turn(run):
    async def body(rollout):
        trunk = await rollout.start().run()
        node = rollout.graph.nodes[trunk.path[0]]
        node.masks = {"word": [[1, 4]]}
        first = rollout.split(node, 2)
        assert (first.masks, node.masks) == ({"word": [[1, 2]]}, {"word": [[0, 2]]})
        assert (first.reward, node.reward) == (0.0, -0.1) and first.valid and not node.valid
        assert (first.anchor, node.anchor) == ("0", None)
        assert rollout.entropy_of(first) == [1.0, 1.0] and len(rollout.entropy_of(node)) == 4
        assert rollout.graph.pieces(node) == [first, node]
        with pytest.raises(ValueError, match="cannot cut"):
            rollout.split(first, 2)

    graph, _ = roll(run, body, words, limits=None)
    graph.nodes[1].observation = [1]
    with pytest.raises(GraphError, match="does not continue"):
        graph.check()


def test_forced_tokens_begin_the_turn_and_may_be_all_of_it(run):
    async def body(rollout):
        trunk = await rollout.start().run()
        forced = rollout.graph.nodes[trunk.path[0]].action
        whole = await trunk.fork(after=0, forced=forced, forced_logprobs=[-2.0] * len(forced))
        part = await trunk.fork(after=0, forced=forced[:1])
        scored = rollout.start()
        scored.force(forced)
        await rollout.run([whole, part, scored])

    graph, policy = roll(run, body, policy=Reads)
    trunk, whole, part, scored = (graph.nodes[graph.path(e.id)[0]] for e in graph.episodes)
    assert whole.action == trunk.action and whole.logprobs == [-2.0, -2.0] and whole.prompt_tokens == 0
    assert whole.decision["forced"] == 2
    assert part.action[0] == trunk.action[0] and part.decision["forced"] == 1
    # What no log p was given of, the server reads: -3 each, where it samples with -1.
    assert part.logprobs == [-3.0, -1.0, -1.0] and scored.logprobs == [-3.0, -3.0]
    assert scored.policy_version == [7, 8] and whole.policy_version == [0, 0]
    assert graph.prompt(part.id) + part.action[:1] in policy.prompts
    assert len(policy.prompts) == len(graph.nodes) - 2


def test_forced_tokens_that_end_at_a_stop_string_are_all_of_the_turn(run):
    class Stopped(Worker):
        async def run(self, episode):
            context = episode.context("agent").observe((await episode.reset()).text)
            await episode.act((await episode.generate(context, stop=("right",))).text)

    async def body(rollout):
        episode = rollout.start()
        assert episode.turn_request is None and await episode.ready() and episode.turn_request.context.agent == "agent"
        episode.force([10, 11])
        episode.force(right, [-2.0])
        await rollout.run([episode])

    tokenizer = WordTokenizer()
    right = tokenizer.encode("right")
    graph, policy = roll(run, body, worker=Stopped, tokenizer=tokenizer)
    assert [node.action for node in graph.nodes] == [right] and not policy.prompts


def test_forced_tokens_that_do_not_fit_the_context_end_the_episode(run):
    async def body(rollout):
        episode = rollout.start()
        episode.force([10] * 40, [-1.0] * 40)
        await rollout.run([episode])
        assert episode.record.error == "context_tokens" and episode.last_node is None

    roll(run, body, limits=Limits(context_tokens=30))


def test_a_fork_at_the_tip_copies_the_world_and_replays_nothing(run):
    async def body(rollout):
        trunk = rollout.start()
        await trunk.step()
        await rollout.run([await trunk.fork(), trunk])
        assert "replayed_calls" not in rollout.graph.counts
        await (await trunk.fork(after=1)).run()

    graph, _ = roll(run, body)
    assert [e.ret for e in graph.episodes] == [1.0, 1.0, 1.0]
    assert graph.counts["replayed_calls"] == 1


@pytest.mark.parametrize("source", ["sampled", "prefill"])
def test_entropy_stands_on_the_nodes(run, source):
    async def body(rollout):
        node = await rollout.start().step()
        assert rollout.entropy_of(node) == pytest.approx([1.0, 1.0] if source == "sampled" else [0.36787944] * 2)

    graph, _ = roll(run, body, entropy=EntropyOptions(source=source, k=1))
    assert bool(graph.nodes[0].entropy) == (source == "prefill")


def test_top_entropy_is_not_renormalised():
    import math

    assert top_entropy([(i, math.log(p)) for i, p in enumerate((0.5, 0.25, 0.125, 0.0625))]) / math.log(
        151936
    ) == pytest.approx(0.094405, abs=1e-6)
