"""What is written down during a rollout: ends, rewards, budgets, contexts, and what later steps take over."""

from __future__ import annotations

import asyncio
import math
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fixtures.corridor import Corridor
from tests.unit.rollout.test_turns import Asked, Body, roll
from verl_hier.environments.base import StepResult
from verl_hier.errors import GraphError, RecipeError, RolloutError
from verl_hier.graph import EpisodeRecord, Message, Node, RolloutGraph
from verl_hier.rollout import EndReason, Limits, Request, Rollout, Sampling
from verl_hier.rollout.branching import (
    ForkPoint,
    action_tokens,
    advance_part,
    advance_turn,
    at_least,
    discard_idle,
    fork_episodes,
    inner_fork_points,
    keep_only,
    outcomes,
    place_before,
    play_out,
    reach,
    start_episodes,
    token_at,
    within_message,
    within_segment,
)
from verl_hier.rollout.budget import Budget, BudgetOptions, BudgetSpent, Grant
from verl_hier.rollout.context import Context
from verl_hier.rollout.episode_view import EpisodeView
from verl_hier.rollout.off_loop import LONG, off_loop
from verl_hier.rollout.plain_renderer import PlainRenderer, completes
from verl_hier.rollout.prompts import check_action_template, content_of, fill, observe, source_nodes
from verl_hier.rollout.recorded_policy import RecordedPolicy, differences
from verl_hier.rollout.recorded_world import RecordedWorld, keep_answer, keep_reset, kept_answer
from verl_hier.rollout.replay_log import Event, ReplayLog
from verl_hier.rollout.rewards import Reward, RewardOptions, rate
from verl_hier.rollout.seeds import derive
from verl_hier.rollout.task import RolloutSetup
from verl_hier.rollout.tool_use import ToolUse
from verl_hier.rollout.transcript import Transcript
from verl_hier.rollout.unfinished import UnfinishedEpisode, UnfinishedEpisodes, _origin, sampled_in, task_seed_name
from verl_hier.testing.rollout import CharacterTokenizer, InlinePool, WordTokenizer

quick = settings(max_examples=60, deadline=None)


def rollout_of(budget=None, seed=0, n=4, **request) -> Rollout:
    """A rollout whose nodes the test puts together by hand."""
    tokenizer = WordTokenizer()
    setup = RolloutSetup(
        policies={"default": Asked(tokenizer, lambda prompt, sampling: "right")},
        renderer=PlainRenderer(tokenizer),
        environments=InlinePool(Corridor),
        seed=seed,
        budget=budget or BudgetOptions(),
    )
    identity = {"uid": "u", "index": 7}
    return Rollout(Request({"instruction": "go"}, identity, n, **request), setup, lambda: Body(None))


def grow(episode, agent="a", **fields) -> Node:
    """Another node at the end of an episode."""
    graph = episode.rollout.graph
    base = Node(
        len(graph.nodes),
        episode.record.leaf,
        -1,
        episode.id,
        agent,
        agent,
        0,
        episode.next_turn,
        0,
        -1,
        [1],
        [2],
        [-1.0],
    )
    node = replace(base, **fields)
    graph.nodes.append(node)
    episode.record.leaf = node.id
    return node


# Ends


@pytest.mark.parametrize("status", ["finished", "truncated", "pruned", "failed"])
@pytest.mark.parametrize("mine", [False, True])
@pytest.mark.parametrize("done", [False, True])
def test_the_last_turn_says_how_its_episode_ended(status, mine, done):
    episode = rollout_of().start()
    node = grow(episode, reward=0.5, done=done)
    grow_before = episode.paused.is_set()
    episode.finished_by_worker = mine
    reason = None if status == "finished" else "why"
    episode.end(status, reason)
    assert node.done == (done or (mine and status == "finished"))
    assert node.truncated == (status == "truncated" and not done)
    assert episode.record.error == reason and episode.record.ret == 0.5 and episode.record.status == status
    assert episode.over and episode.complete == (status in ("finished", "truncated"))
    assert not grow_before and episode.paused.is_set()


def test_an_end_without_a_reason_or_a_turn_cuts_nothing():
    episode = rollout_of().start()
    node = grow(episode)
    episode.end("truncated", None)
    assert not node.truncated and episode.record.error is None
    cut = rollout_of().start()
    grow(cut, truncated=True, done=True)
    cut.end("truncated", "x")
    assert cut.last_node.truncated
    empty = rollout_of().start()
    empty.end("truncated", EndReason.MAX_TURNS)
    assert empty.record.error == "max_turns" and empty.record.ret == 0 and empty.next_turn == 0


@pytest.mark.parametrize(("used", "name"), [(True, "solved_with_tool"), (False, "solved_without_tool")])
def test_solutions_are_counted_by_their_tool(used, name):
    for won in (True, False):
        episode = rollout_of().start()
        grow(episode)
        episode.hear(StepResult("x", done=True, info={"won": won, "used_tool": used}))
        episode.end("finished", None)
        assert episode.rollout.graph.counts == ({name: 1} if won else {})
        assert episode.record.success is won
    silent = rollout_of().start()
    silent.hear(StepResult("x", done=True, info={"won": True}))
    silent.end("finished", None)
    assert silent.rollout.graph.counts == {} and silent.record.success is True


def test_turns_are_numbered_by_what_is_whole():
    episode = rollout_of().start()
    assert episode.last_node is None and episode.next_turn == 0 and episode.boundaries == [0]
    grow(episode, partial=True)
    assert episode.next_turn == 0 and episode.boundaries == [0]
    grow(episode)
    assert episode.next_turn == 1 and episode.boundaries == [0, 2]
    grow(episode)
    assert episode.boundaries == [0, 2, 3] and episode.path == [0, 1, 2]


# Rewards


def test_answers_are_credited_to_who_acted():
    episode = rollout_of().start()
    first, second = grow(episode, "a"), grow(episode, "b")
    episode.credit(StepResult("x", 1.0, valid=False, truncated=True), second)
    assert (second.reward, second.valid, second.truncated, second.done) == (1.0, False, True, False)
    episode.credit(StepResult("x", 0.5), second)
    assert (second.reward, second.valid, second.truncated) == (1.5, False, False)
    episode.credit(StepResult("x", 2.0, valid=False, done=True), first)
    assert (first.reward, first.valid, second.reward, second.done) == (2.0, False, 1.5, True)
    episode.credit(StepResult("x", 0.25, rewards={"a": 10.0, "c": 100.0}), second)
    assert (first.reward, second.reward) == (12.0, 101.75)
    assert episode.rollout.graph.counts == {"rewards_without_turn": 1}
    assert episode.ret == first.reward + second.reward == 113.75
    episode.credit(StepResult("x", 0.5, info={"tool_rewards": 1}), second)
    assert second.reward == 102.25


def test_a_shared_turn_takes_no_reward_of_one_episode_alone():
    rollout = rollout_of()
    episode = rollout.start()
    first = grow(episode, "a")
    other = rollout.start()
    other.record.leaf = first.id
    last = grow(episode, "b")
    episode.credit(StepResult("x", 1.0, valid=False), first)
    assert (first.reward, first.valid, last.reward, last.valid) == (0.0, False, 1.0, True)
    episode.credit(StepResult("x", 0.0, rewards={"a": 5.0}), last)
    episode.pay(first, 3.0)
    assert (first.reward, last.reward) == (0.0, 9.0) and rollout.earlier_rewards == []
    other.record.leaf = -1
    episode.pay(first, 2.0)
    assert first.reward == 2.0 and len(rollout.earlier_rewards) == 1
    episode.keep_rewards_after({first.id, last.id})
    assert first.reward == 2.0
    episode.keep_rewards_after({first.id})
    assert (first.reward, last.reward) == (0.0, 11.0) and rollout.earlier_rewards == []
    rollout.start().pay(first, 1.0)
    assert first.reward == 0.0


# What a worker notes


def test_marks_stand_on_the_pieces_of_a_turn():
    async def marks(episode):
        await episode.reset()
        context = episode.context("agent")
        turn = await episode.generate(context.observe("x"))
        assert turn.text == "a b c d" and len(turn.tokens) == 5 and turn.complete
        turn.mark(valid=False, masks={"m": [[1, 4]]}, note=2)
        turn.mark(other=1.5)
        turn.set_speaker("speaker", 0)
        turn.set_segment(3)
        turn.reward(0.5)
        episode.pay(turn, 0.25)
        second = await episode.generate(context.observe("y"))
        second.set_speaker("role", agent="name")
        second.mark(valid=True)

    async def pieces(rollout):
        episode = rollout.start()
        await episode.step(tokens=2)
        await episode.step(tokens=2)
        await episode.step()
        await episode.step()

    def spelled(prompt, sampling):
        return {"b": "c d", "d": ""}.get(prompt[-1], "a b c d")

    graph, _ = roll(pieces, marks, answer=spelled)
    first = [node for node in graph.nodes if node.turn == 0]
    assert [node.text for node in first] == ["a b", " c d", ""]
    starts = [sum(len(node.action) for node in first[:place]) for place in range(len(first))]
    marked = [
        start + token
        for start, node in zip(starts, first, strict=True)
        for a, b in node.masks["m"]
        for token in range(a, b)
    ]
    assert marked == [1, 2, 3]
    assert {(node.role, node.agent, node.segment) for node in first} == {("speaker", "speaker", 3)}
    assert first[-1].extra == {"note": 2, "other": 1.5} and first[0].extra == {}
    assert first[-1].reward == 0.75 and not first[-1].valid
    assert (graph.nodes[-1].role, graph.nodes[-1].agent, graph.nodes[-1].masks) == ("role", "name", {})


def test_rewards_of_a_replayed_past_are_not_given_again():
    async def pays(episode):
        step = await episode.reset()
        context = episode.context("agent")
        first = None
        while not step.done:
            turn = await episode.generate(context.observe(step.text))
            first = first or turn
            turn.reward(1.0)
            step = await episode.act(turn.text)
            episode.pay(first, 10.0)

    async def forks(rollout):
        whole = await rollout.start().run()
        await (await whole.fork(after=2)).run()

    graph, _ = roll(forks, pays)
    assert [episode.ret for episode in graph.episodes] == [34.0, 34.0]
    assert graph.counts["environment_calls"] == 4 and graph.counts["forks"] == 1


def test_an_action_is_worth_what_the_worker_says():
    async def acts(episode):
        step = await episode.reset()
        context = episode.context("agent")
        first = await episode.generate(context.observe(step.text))
        second = await episode.generate(context.observe("again"))
        await episode.act("left", first)
        await episode.act("right", worth=lambda step: 7.0)
        assert second.node.reward == 7.0 and first.node.reward == pytest.approx(-0.1) and not first.node.valid
        assert episode.instruction == "do it" and not episode.validates and episode.longest_quote == 32_000
        assert episode.learns(0) and episode.learns(3) and await episode.room(context) == 4096 - 10

    graph, _ = roll(worker=acts)
    assert graph.episodes[0].error == "worker_stopped" and graph.counts["environment_calls"] == 2
    assert graph.nodes[1].truncated and not graph.nodes[1].done


def test_a_worker_may_end_a_task_of_its_own():
    async def ends(episode):
        await episode.reset()
        await episode.generate(episode.context("agent").observe("x"))
        episode.finish()

    graph, _ = roll(worker=ends)
    assert graph.episodes[0].status == "finished" and graph.episodes[0].error is None and graph.nodes[0].done
    assert graph.episodes[0].success is None

    async def quiet(episode):
        await episode.reset()

    graph, _ = roll(worker=quiet)
    assert graph.episodes[0].error == "worker_stopped" and not graph.nodes


def test_the_likelihood_of_a_text_is_asked_once_and_cut_to_the_room():
    found = []

    async def asks(episode):
        await episode.reset()
        context = episode.context("agent").observe("x y")
        found.append(await episode.likelihoods(context, ["a b c d", "", "a", "a"]))

    async def two(rollout):
        await asyncio.gather(rollout.start().run(), rollout.start().run())

    graph, policy = roll(two, asks, limits=Limits(context_tokens=5))
    assert found == [[-3.0, -math.inf, -3.0, -3.0]] * 2
    assert sorted(len(tokens) for _, tokens, _ in policy.scored) == [1, 2]
    assert set(graph.request["likelihoods"].values()) == {-3.0} and len(graph.request["likelihoods"]) == 2
    found.clear()
    _, policy = roll(worker=asks, limits=Limits(context_tokens=3))
    assert found == [[-math.inf] * 4] and not policy.scored
    _, policy = roll(worker=asks, limits=Limits(context_tokens=2))
    assert found[1] == [-math.inf] * 4


# Budgets


def test_what_is_left_is_neither_spent_nor_reserved():
    budget = Budget(BudgetOptions(tokens=10, environment_calls=2))
    assert budget.used == {"tokens": 0, "turns": 0, "environment_calls": 0, "leaves": 0}
    assert budget.shared and budget.limited("tokens") and not budget.limited("turns")
    assert budget.left("turns") == math.inf and budget.left("tokens") == 10 and budget.turns_left == 2
    with Grant(budget, {"tokens": 4.0, "environment_calls": 1.0}) as grant:
        assert budget.left("tokens") == 6 and grant.tokens == 4
        grant.spend_turn(3)
        assert budget.left("tokens") == 6 and budget.used["tokens"] == 3 and budget.used["turns"] == 1
        assert grant.tokens == 1 and grant.spend_call() and not grant.spend_call()
        assert budget.left("environment_calls") == 1
    assert budget.left("tokens") == 7 and budget.left("environment_calls") == 1
    assert budget.spend_call() and not budget.spend_call() and budget.used["environment_calls"] == 2
    assert budget.left("environment_calls") == 0 and budget.turns_left == 0
    assert budget.report() == {"tokens": [3.0, 10.0], "environment_calls": [2.0, 2.0]}
    assert not Budget(BudgetOptions(leaves=1, wall_s=9.0)).shared and Budget(BudgetOptions()).turns_left == math.inf
    free = Grant(Budget(BudgetOptions()), {})
    assert free.tokens is None and all(free.spend_call() for _ in range(3))
    assert BudgetOptions(turns=1).turns == 1
    for wrong in (0, -1):
        with pytest.raises(ValueError, match="turns must be positive"):
            BudgetOptions(turns=wrong)


def test_a_limit_of_time_ends_all_turns():
    budget = Budget(BudgetOptions(wall_s=60.0))
    assert budget.turns_left == math.inf and 0 < budget.left("wall_s") <= 60
    budget._started -= 60
    assert budget.left("wall_s") == 0 and budget.turns_left == 0 and 60 <= budget.report()["wall_s"][0] < 600
    assert asyncio.run(budget.grant(2, 5)) == []


def test_grants_are_equal_shares_of_what_is_left():
    async def shares(limits, episodes, most):
        return [grant._amounts for grant in await Budget(limits).grant(episodes, most)]

    assert asyncio.run(shares(BudgetOptions(tokens=10, turns=2), 3, 100)) == [{"tokens": 5, "turns": 1}] * 2
    assert asyncio.run(shares(BudgetOptions(tokens=10), 3, 100)) == [{"tokens": 3}] * 3
    assert asyncio.run(shares(BudgetOptions(tokens=10), 3, 2)) == [{"tokens": 2}] * 3
    assert asyncio.run(shares(BudgetOptions(environment_calls=7), 2, 1)) == [{"environment_calls": 3}] * 2
    assert asyncio.run(shares(BudgetOptions(), 2, 1)) == [{}, {}]
    assert asyncio.run(shares(BudgetOptions(turns=1), 0, 1)) == []
    assert asyncio.run(shares(BudgetOptions(turns=9), 2, 1)) == [{"turns": 1}] * 2

    async def takes_the_last():
        budget = Budget(BudgetOptions(turns=2))
        return [await asyncio.wait_for(budget.grant(1, 5), 5) for _ in range(2)]

    assert [len(grants) for grants in asyncio.run(takes_the_last())] == [1, 1]

    async def waits():
        budget = Budget(BudgetOptions(tokens=6))
        (first,) = await budget.grant(1, 5)
        second = asyncio.ensure_future(budget.grant(2, 5))
        await asyncio.sleep(0)
        assert not second.done()  # one token is left for two
        first.spend_turn(2)
        first.__exit__()
        return [grant.tokens for grant in await second]

    assert asyncio.run(waits()) == [2, 2]


def test_leaves_are_those_that_still_count():
    rollout = rollout_of(BudgetOptions(leaves=2))
    first, _ = rollout.start(), rollout.start(trained=False)
    second = rollout.start()
    assert [episode.record.tree for episode in rollout.episodes] == [0, 1, 2]
    with pytest.raises(BudgetSpent):
        rollout.start()
    rollout.start(trained=False)
    assert rollout.budget.used["leaves"] == 2
    first.prune("x")
    rollout.start()
    with pytest.raises(BudgetSpent):
        rollout.start()
    second.end("failed", "x")
    rollout.start()
    assert rollout.budget.left("leaves") == 0 and len(rollout.graph.episodes) == len(rollout.episodes) == 6


def test_a_rollout_that_runs_out_is_short():
    async def greedy(rollout):
        rollout.expected = 1
        await rollout.run([rollout.start(), rollout.start()])

    graph, _ = roll(greedy, budget=BudgetOptions(turns=4), n=2)
    assert [episode.status for episode in graph.episodes] == ["pruned", "pruned"] and graph.short
    assert graph.counts["budget_pruned"] == 2 and [len(graph.path(number)) for number in (0, 1)] == [2, 2]
    graph, _ = roll(budget=BudgetOptions(turns=2), n=1)
    assert graph.episodes[0].error == "budget" and graph.short and graph.counts["budget_pruned"] == 1
    graph, _ = roll(n=1)
    assert not graph.short and "budget_pruned" not in graph.counts
    graph, _ = roll(n=2)
    assert graph.short


# Sampling and seeds


def test_evaluations_keep_the_recipes_sampling():
    own = {"temperature": 0.5}
    for validate in (False, True):
        rollout = rollout_of(validate=validate, sampling=Sampling(0.75, 0.5, 3))
        found = rollout.sampling("x", False, 9, ("s",), own)
        assert (found.temperature, found.top_p, found.top_k) == (0.75 if validate else 0.5, 0.5, 3)
        assert found.seed == derive(0, rollout.seed_name, "x") and found.max_tokens == 9 and found.stop == ("s",)
        assert rollout.sampling("x", False, 9, ()).temperature == 0.75
        greedy = rollout.sampling("x", True, 9, (), own)
        assert (greedy.temperature, greedy.top_p, greedy.top_k) == (0.0, 1.0, -1)
    assert rollout_of(seed=None).sampling("x", False, 9, ()).seed is None
    assert rollout_of(seed=0).rng("a").random() == rollout_of(seed=None).rng("a").random()
    assert task_seed_name(3, 7, True) == "3/7/1" and rollout_of(step=3).seed_name == "3/7/0"
    assert [derive(seed, "a", 1) for seed in (0, 1)] == [406722739, 143865065]
    assert len({derive(seed, "a") for seed in range(100)}) == 100
    assert max(derive(seed) for seed in range(64)) > 2**30 and rollout_of().level("a", None) == 0
    assert rollout_of().level("a", 2) == 2


def test_a_request_is_that_of_its_graph():
    request = Request(
        {"a": 1}, {"uid": "u"}, 3, 5, frozenset({2, 1}), True, Sampling(0.5, 0.25, 7), (), {"x": 1}, {"y": 2}
    )
    graph = RolloutGraph({"uid": "u"}, step=5, request=request.to_dict())
    graph.episodes = [EpisodeRecord(0)]
    again = Request.of(graph, {"a": 1})
    assert again == request
    plain = Request({}, {"uid": "u"}, 1)
    assert (
        plain.step == 0 and not plain.validate and "told" not in plain.to_dict() and plain.to_dict()["levels"] is None
    )
    graph.request["n"] = 100
    assert Request.of(graph, {}).n == 100
    graph.request["n"] = 101
    with pytest.raises(GraphError, match="answers a request for 101 episodes with 1"):
        Request.of(graph, {})
    for name in ("n", "validate", "levels", "temperature", "top_p", "top_k"):
        stored = {key: value for key, value in request.to_dict().items() if key != name}
        with pytest.raises(GraphError, match=f"`{name}`"):
            Request.of(replace(graph, request=stored), {})


# Branching


def test_starts_and_forks_end_with_the_budget():
    rollout = rollout_of(BudgetOptions(turns=3))
    assert len(start_episodes(rollout, 5)) == 3 and rollout.graph.counts["budget_skipped"] == 2
    rollout = rollout_of(BudgetOptions(leaves=2))
    assert len(start_episodes(rollout, 2, why="x")) == 2 and "budget_skipped" not in rollout.graph.counts
    assert rollout.episodes[0].record.decision == {"why": "x"}
    assert start_episodes(rollout, 1) == [] and rollout.graph.counts["budget_skipped"] == 1
    for turns, beside, made in ((3, 0, 3), (3, 1, 2), (3, 3, 0), (9, 0, 4)):
        rollout = rollout_of(BudgetOptions(turns=turns))
        source = rollout.start()
        places = [ForkPoint(source, 0, trained=number > 0).with_decision(n=number) for number in range(4)]
        forks = asyncio.run(fork_episodes(rollout, places, beside))
        assert [fork.record.decision["n"] for fork in forks] == list(range(made))
        assert [fork.record.trained for fork in forks] == [number > 0 for number in range(made)]
        assert rollout.graph.counts.get("budget_skipped", 0) == 4 - made
    assert len(asyncio.run(fork_episodes(rollout_of(BudgetOptions(turns=1)), places[:1]))) == 1


def test_points_on_a_path_are_counted_in_tokens():
    rollout = rollout_of()
    episode = rollout.start()
    rollout.renderer._tokenizer.encode(" ".join(map(str, range(20))))
    nodes = [
        grow(episode, action=[10, 11]),
        grow(episode, action=[12], partial=True),
        grow(episode, action=[13, 14, 15]),
    ]
    for node in nodes:
        node.logprobs = [-1.0] * len(node.action)
    assert action_tokens(episode) == [10, 11, 12, 13, 14, 15]
    assert action_tokens(episode, 1) == [11, 12, 13, 14, 15] and action_tokens(episode, 1, 3) == [11, 12]
    places = [token_at(episode, offset) for offset in range(6)]
    assert [(node.id, at) for node, at in places] == [(0, 0), (0, 1), (1, 0), (2, 0), (2, 1), (2, 2)]
    with pytest.raises(IndexError, match="no action token 0 places after its end"):
        token_at(episode, 6)
    assert place_before(rollout, episode, 2).after == 1 and len(rollout.graph.nodes) == 3
    assert place_before(rollout, episode, 0).after == 0
    assert place_before(rollout, episode, 4).after == 3 and len(rollout.graph.nodes) == 4
    assert action_tokens(episode) == [10, 11, 12, 13, 14, 15]
    episode.end("finished", None)
    assert [place.after for place in inner_fork_points([episode])] == [1]
    twin = rollout.start()
    twin.record.leaf, twin.record.status = episode.record.leaf, "finished"
    assert [place.episode for place in inner_fork_points([episode, twin])] == [episode]
    assert inner_fork_points([rollout.start()]) == []
    long, beside = rollout.start(), rollout.start()
    for number in range(3):
        grow(long)
        if not number:
            beside.record.leaf = long.record.leaf
    grow(beside)
    grow(beside)
    for each in (long, beside):
        each.end("finished", None)
    found = [(place.episode.id, place.after) for place in inner_fork_points([long, beside])]
    assert found == [(long.id, 1), (long.id, 2), (beside.id, 2)]


def test_outcomes_are_success_or_else_the_scaled_return():
    rollout = rollout_of()

    def ended(ret, success=None):
        episode = rollout.start()
        grow(episode, reward=ret)
        episode.end("finished", None)
        episode.record.success = success
        return episode

    assert outcomes([ended(1.0), ended(3.0), ended(2.0)]) == [0.0, 1.0, 0.5]
    assert outcomes([ended(2.0), ended(2.0)]) == [0.0, 0.0] and outcomes([]) == []
    assert outcomes([ended(5.0, True), ended(1.0, False), ended(2.0)]) == [1.0, 0.0, 0.25]


def test_forks_without_a_turn_of_their_own_repeat_their_source():
    rollout = rollout_of()
    source = rollout.start()
    grow(source)
    source.end("finished", None)
    idle = asyncio.run(source.fork())
    idle.end("finished", None)
    busy = asyncio.run(source.fork())
    grow(busy)
    busy.end("finished", None)
    running = asyncio.run(source.fork())
    fresh = rollout.start()
    fresh.end("truncated", "x")
    discard_idle(rollout, rollout.episodes)
    assert [e.record.status for e in (source, idle, busy, running, fresh)] == [
        *["finished", "pruned", "finished", "running", "truncated"]
    ]
    assert idle.record.error == "idle" and rollout.graph.counts["idle_forks"] == 1
    keep_only(rollout, [source, busy], [busy], EndReason.NOT_KEPT)
    keep_only(rollout, [busy], [busy], "other")
    assert (source.record.status, busy.record.status) == ("pruned", "finished")
    assert rollout.graph.counts["not_kept"] == 1 and "other" not in rollout.graph.counts
    with pytest.raises(RecipeError, match="n >= 2; got 1"):
        at_least(2, "sampler halves")(None, 1)
    assert at_least(2, "sampler halves")(None, 2) == 2


def test_advances_return_those_that_go_on():
    seen = {}

    async def body(rollout):
        episodes = start_episodes(rollout, 3)
        episodes[2].stop("early")
        seen["turn"] = [e.id for e in await advance_turn(rollout, episodes)]
        seen["turns"] = [len(e.path) for e in episodes]
        part = await advance_part(rollout, episodes[:2], lambda e: len(e.path) < 2 and e.id == 0)
        seen["part"] = ([e.id for e in part], [len(e.path) for e in episodes])
        seen["whole"] = [e.id for e in await advance_part(rollout, episodes[:1], lambda e: True)]
        seen["out"] = [e.id for e in await play_out(rollout, episodes)]

    graph, _ = roll(body)
    assert seen["turn"] == [0, 1, 2] and seen["turns"] == [1, 1, 0]
    assert seen["part"] == ([0, 1], [2, 2, 0]) and seen["whole"] == [] and seen["out"] == [0, 1, 2]
    assert graph.episodes[2].success is None and graph.episodes[2].error == "early"


@pytest.mark.parametrize("length", [0, 1, 3, 4, 99])
def test_episodes_go_on_until_they_have_so_many_tokens(length):
    lengths = []

    async def body(rollout):
        episodes = start_episodes(rollout, 2)
        await episodes[0].step()
        await reach(rollout, episodes, length)
        lengths.extend(len(action_tokens(episode)) for episode in episodes)

    roll(body, answer="right")
    assert lengths == [min(max(length, 2), 6), min(length, 6)]


def test_turns_in_pieces_are_ended_before_others_begin():
    watched, pieces = [], []

    async def body(rollout):
        episodes = start_episodes(rollout, 2)

        def watch(episode):
            watched.append(episode.id)
            return episode.id == 0 and len(episode.path) < 2

        await advance_turn(rollout, episodes, 2, watch)
        pieces.extend([len(node.action) for node in episode.nodes] for episode in episodes)

    roll(body, answer=lambda p, s: "a b c d e" if p[-1].isdigit() or p.endswith("<act>") else "x y z")
    assert watched[:2] == [0, 1] and pieces[0][:2] == [2, 2] and pieces[1][0] == 2
    assert len(pieces[0]) == 3 and len(pieces[1]) == 2


@pytest.mark.parametrize(
    ("agent", "segment", "message", "same"), [("a", 0, True, True), ("b", 0, False, True), ("a", 1, False, False)]
)
def test_a_message_goes_on_while_its_agent_and_segment_stay(agent, segment, message, same):
    found = []

    async def talks(episode):
        await episode.reset()
        await episode.generate(episode.context("a").observe("x"))
        await episode.generate(episode.context(agent).observe("x"), segment=segment)

    async def body(rollout):
        episode = rollout.start()
        found.append((within_message(episode), within_segment(episode)))
        await episode.step()
        found.append((within_message(episode), within_segment(episode)))
        await episode.run()
        found.append((within_message(episode), within_segment(episode)))

    roll(body, talks)
    assert found == [(False, False), (message, same), (False, False)]


def test_forks_share_as_many_nodes_as_they_are_told():
    async def body(rollout):
        whole = await rollout.start().run()
        for wrong in (-1, len(whole.path) + 1):
            with pytest.raises(ValueError, match=f"cannot share {wrong} of 3 turns"):
                await whole.fork(after=wrong)
        fork = await whole.fork(after=0, stand_ins={"a": "x"})
        assert fork.record.leaf == -1 and fork.stand_ins == {"a": "x"} and fork.speakers == ()
        again = await fork.fork(stand_ins={"b": ""})
        assert again.stand_ins == {"a": "x", "b": ""} and again.record.source == 1 and again.record.tree == 0
        full = await whole.fork()
        assert full.path == whole.path and full.record.shared == 3
        await rollout.run([fork, full])
        whole.withhold()
        again.prune()
        assert again.record.error is None and whole.record.decision["kept"] is False and not whole.record.trained
        whole.discard("given up")
        assert whole.record.status == "pruned" and whole.record.error == "given up"

    graph, _ = roll(body)
    assert [episode.status for episode in graph.episodes[:2]] == ["pruned", "finished"]


def test_turns_of_an_episode_are_run_one_by_one():
    counts = []

    async def body(rollout):
        episode = rollout.start()
        for turns in (0, 1, 1):
            await episode.run(turns=turns)
            counts.append(len(episode.path))
        await episode.run(turns=5)
        counts.append(len(episode.path))
        assert await episode.step() is episode.last_node

    roll(body)
    assert counts == [0, 1, 2, 3]


# Contexts


def test_a_context_grows_and_is_never_rewritten():
    tokenizer = WordTokenizer()
    renderer = PlainRenderer(tokenizer)
    context = Context(renderer, "role", 2)
    assert context.agent == "role" and context.pending_characters == 0 and context.prompt()[1] == 0
    for call in (lambda: context.extend("x"), lambda: context.read_as("x")):
        with pytest.raises(ValueError, match="not taken a turn yet"):
            call()
    node = rollout_of().start()
    node = grow(node)
    context.observe("a b").observe("cc", sources=[node, node])
    assert context.pending_characters == 5
    prompt, kept = context.prompt()
    assert kept == 0 and [m.content for m in context.new_messages(True)] == ["a b", "cc"]
    assert context.new_messages(True)[1].to_message() == Message("user", "cc", [0])
    action = tokenizer.encode("d")
    assert context.append_turn(prompt, action, node) == "d" and context.pending_characters == 0
    context.extend("e", [node])
    second, kept = context.prompt()
    assert kept == len(prompt) + 1 and second[:kept] == prompt + action
    assert [m.content for m in context.new_messages(True)] == ["e"]
    assert [m.content for m in context.new_messages(False)] == ["a b", "cc", "d", "e"]
    context.append_turn(second, tokenizer.encode("f"), node, "f")
    assert [m.content for m in context.new_messages(False)] == ["a b", "cc", "def"]
    assert context.new_messages(False)[-1].sources == (node, node, node)
    assert [message["content"] for message in context._chat] == ["a b", "cc", "def"]
    context.read_as("said", tool_calls=[1])
    assert context._chat[-1] == {"role": "assistant", "content": "said", "tool_calls": [1]}
    context._tokens = [999]
    context._renderer = type("Anew", (), {"render": lambda self, *arguments: [1, 2]})()
    assert context.prompt() == ([1, 2], 0)
    context._tokens = [1]
    assert context.prompt() == ([1, 2], 1)


def test_a_renderer_that_raises_is_named_with_the_last_message():
    class Broken:
        def render(self, *arguments):
            raise KeyError("no such role")

    context = Context(Broken(), "role", 0)
    with pytest.raises(RolloutError, match=r"'role'.*KeyError.*begins with ''"):
        context.prompt()
    with pytest.raises(RolloutError, match="begins with 'the last"):
        context.observe("first").observe("second").observe("the last one").prompt()


@settings(max_examples=25, deadline=None)
@given(st.lists(st.sampled_from(["a", "b ", " ", "  ", "xyz"]), max_size=150), st.data())
def test_places_in_an_action_are_found_as_by_counting(pieces, data):
    tokenizer = CharacterTokenizer()
    renderer = PlainRenderer(tokenizer)
    action = tokenizer.encode("".join(pieces))
    length = len(renderer.decode(action))
    ends = sorted(data.draw(st.lists(st.integers(1, max(length, 1)), max_size=4)))

    def slowly(end):
        return next((n for n in range(len(action) + 1) if len(renderer.decode(action[:n])) >= end), len(action))

    found = Context(renderer, "role", 0).tokens_until(action, ends)
    assert found == [slowly(end) for end in ends]


# What later steps take over


def unfinished_graph():
    rollout = rollout_of(step=4)
    episode = rollout.start()
    carried = {"decision": {"carried": 2}}
    nodes = [grow(episode, **carried), grow(episode, context=0, plan=0, **carried), grow(episode)]
    for _ in range(2):
        rollout.start()
    episode.prune(EndReason.LEFT_UNFINISHED)
    return rollout, nodes


def test_only_what_was_left_unfinished_goes_on():
    rollout, _ = unfinished_graph()
    (left,) = UnfinishedEpisode.left_in(rollout.graph)
    assert left.step == 4 and left.began == 2 and left.worker_seed_name == "4/7/0/0"
    assert [(node.id, node.parent, node.context, node.plan) for node in left.nodes] == [
        *[(0, -1, -1, -1), (1, 0, 0, 0), (2, 1, -1, -1)]
    ]
    assert [node.decision["carried"] for node in left.nodes] == [2, 2, 4]
    assert [sampled_in(node, 9) for node in left.nodes] == [2, 2, 4] and sampled_in(grow(rollout.start()), 9) == 9
    record = rollout.graph.episodes[0]
    for change in ({"error": "other"}, {"status": "finished"}, {"leaf": -1}, {"decision": {"stand_ins": {}}}):
        rollout.graph.episodes[0] = replace(record, **change)
        assert list(UnfinishedEpisode.left_in(rollout.graph)) == []
    rollout.graph.episodes[0] = replace(record, decision={"resumed": {"step": 1, "origin": "1/7/0/5"}})
    assert next(UnfinishedEpisode.left_in(rollout.graph)).worker_seed_name == "1/7/0/5"
    (resumed,) = UnfinishedEpisode.resumed_in(rollout.graph)
    assert (resumed.step, resumed.worker_seed_name) == (1, "1/7/0/5")
    assert [(node.plan, node.context) for node in resumed.nodes] == [(-1, -1), (0, 0)]
    rollout.graph.episodes[0] = replace(record, decision={"resumed": None})
    assert list(UnfinishedEpisode.resumed_in(rollout.graph)) == []


def test_the_oldest_unfinished_episodes_are_forgotten_first():
    kept = UnfinishedEpisodes(2)
    rollout, _ = unfinished_graph()
    for task in ("a", "b", "a"):
        kept.keep(task, rollout.graph)
    assert len(kept) == 2
    assert kept.take("b", 5) == () and len(kept) == 2
    assert kept.take("a", 4) == () and len(kept) == 0
    kept.keep("a", rollout.graph)
    assert len(kept.take("a", 5)) == 1 and kept.take("a", 5) == ()


# Recorded rollouts


def test_a_recorded_policy_gives_back_what_stands_on_the_nodes():
    async def body(rollout):
        rollout.top_logprobs = 1
        episode = rollout.start()
        episode.force(rollout.renderer._tokenizer.encode("a"))
        await episode.step()
        rollout.split(episode.last_node, 2)

    graph, policy = roll(body, answer="b c", entropy=None)
    recorded = RecordedPolicy(graph)
    first = graph.nodes[0]
    forced = first.action[:1]
    found = asyncio.run(recorded.generate(first.observation + forced, Sampling(seed=first.decision["seed"]), "c"))
    assert found.token_ids == [*policy.tokenizer.encode("b c"), 1] and found.logprobs == [-1.0] * 3
    assert found.version == (3, 4) and found.cached_tokens == first.cached_tokens and len(found.top_logprobs) == 3
    scored = asyncio.run(recorded.score(first.observation, forced, "c"))
    assert scored.logprobs == [-3.0] and scored.version == (3, 4)
    for prompt, tokens in (([9], forced), (first.observation, [9])):
        with pytest.raises(RolloutError, match="scores tokens"):
            asyncio.run(recorded.score(prompt, tokens, "c"))
    with pytest.raises(RolloutError, match="with another prompt"):
        asyncio.run(recorded.generate(first.observation, Sampling(seed=first.decision["seed"]), "c"))
    for seed in (None, 5):
        with pytest.raises(RolloutError, match="does not have"):
            asyncio.run(recorded.generate([1], Sampling(seed=seed), "c"))


def test_differences_name_their_place():
    graph, _ = roll()
    again = RolloutGraph.from_dict(graph.to_dict())
    assert differences(graph, again) == []
    again.nodes[1].action = [*again.nodes[1].action[:-1], 99]
    again.nodes[0].stop_reason = "other"
    again.counts["x"], again.seconds["y"], again.credit = 1, 1.0, [1.0] * 3
    again.nodes[2].decision["more"] = 1
    again.request["n"] = 2
    assert differences(graph, again) == [
        f"nodes[1].action[{len(again.nodes[1].action) - 1}]",
        "nodes[2].decision.more",
        "request.n",
    ]
    again = RolloutGraph.from_dict(graph.to_dict())
    again.nodes.pop()
    assert differences(graph, again) == ["nodes"]


def test_a_recorded_world_answers_by_what_was_done():
    rollout = rollout_of()
    episode = rollout.start()
    first, second = grow(episode), grow(episode)
    keep_reset(rollout.graph, StepResult("begin"))
    keep_reset(rollout.graph, StepResult("again"))
    keep_answer(rollout.graph, first, "a", StepResult("A", 0.5))
    keep_answer(rollout.graph, first, "b", StepResult("B"))
    keep_answer(rollout.graph, second, "c", StepResult("C"))
    assert kept_answer(first, 0, "a").reward == 0.5 and kept_answer(first, 1, "b").text == "B"
    assert kept_answer(first, 0, "b") is None and kept_answer(first, 2, "a") is None
    world = RecordedWorld(rollout.graph)
    assert RecordedWorld.is_in(rollout.graph) and not RecordedWorld.is_in(rollout_of().graph)
    handle, step = asyncio.run(world.open({}, 0))
    assert step.text == "begin"

    async def plays():
        copy = await handle.fork()
        said = [(await handle.step(action)).text for action in "abc"]
        return [*said, (await copy.step("a")).text, (await (await world.resume({}, 0, ["a"], [])).step("b")).text]

    assert asyncio.run(plays()) == ["A", "B", "C", "A", "B"]


def test_answers_are_given_again_in_their_order():
    graph = RolloutGraph({})
    node = Node(0, -1, -1, 0, "a", "a", 0, 0, 0, -1, [1], [2, 3], [])
    graph.nodes = [node]
    log = ReplayLog([Event(step=StepResult("reset")), Event(node=node), Event(action="x", step=StepResult("X"))], "W")
    assert log.goes_on and len(log.left) == 3 and log.step(None).text == "reset"
    for wrong in (lambda: log.step("x"), lambda: log.node([9], graph)):
        with pytest.raises(RolloutError, match="worker W"):
            wrong()
    assert log.node([1], graph) is node and log.goes_on and len(log.left) == 1
    for wrong in (lambda: log.step("y"), lambda: log.node([1], graph)):
        with pytest.raises(RolloutError, match="worker W"):
            wrong()
    first = replace(node, action=[2])
    log.cut(node, first)
    assert log.step("x").text == "X" and not log.goes_on
    begun = ReplayLog([Event(step=StepResult("reset")), Event(node=node)], "W")
    begun.step(None)
    begun.cut(node, first)
    assert [event.node for event in begun.left] == [first, node]
    fresh = ReplayLog([Event(node=node)], "W")
    fresh.cut(node, first)
    assert [event.node for event in fresh.left] == [first, node]


def test_a_transcript_is_what_happened():
    episode = rollout_of().start()
    one, two, three = (
        grow(episode, text=text, partial=part) for text, part in (("go; ", True), ("on\n ;", False), ("x", False))
    )
    answers = [StepResult("a"), StepResult("b")]
    episode.events = [
        Event(step=StepResult("open")),
        *[Event(node=one), Event(node=two), Event(node=three)],
        *[Event(action="m", step=answers[0]), Event(action="n", step=answers[1])],
    ]
    found = Transcript.of(episode)
    assert found.opening.text == "open" and found.instruction == "go" and found.subgoals == ["go", "on"]
    assert [(turn.node.id, turn.text, len(turn.calls)) for turn in found.turns] == [(1, "go; on\n ;", 0), (2, "x", 2)]
    assert [(call.action, call.step.text) for call in found.turns[1].calls] == [("m", "a"), ("n", "b")]
    two.level = 1
    assert Transcript.of(episode).subgoals == []
    three.level = 0
    episode.events.pop()
    episode.events.pop()
    assert Transcript.of(episode).subgoals == ["x"]
    episode.events.insert(1, Event(action="early", step=answers[0]))
    assert len(Transcript.of(episode).turns) == 2


# Rewards by functions


def rated(rewards, seed=0):
    """A tree of random nodes, some in pieces, and its rewards before and after."""
    rollout = rollout_of()
    chance = random.Random(seed)
    trunk = rollout.start()
    for turn in range(3):
        grow(
            trunk, chance.choice("ab"), text=f"t{turn} ", reward=float(turn), partial=turn == 1, action=[1] * (turn + 1)
        )
    fork = rollout.start()
    fork.record.leaf = 0
    grow(fork, "b", text="fork", reward=10.0)
    lost = rollout.start()
    grow(lost, text="lost")
    for episode, status in ((trunk, "finished"), (fork, "truncated"), (lost, "failed")):
        episode.end(status, None)
    graph = rollout.graph
    before = [node.reward for node in graph.nodes]
    asyncio.run(rate(graph, {"t": 1}, rewards))
    return graph, before


@pytest.mark.parametrize("seed", range(4))
def test_numbers_of_turns_are_added_with_their_weight(seed):
    asked = []

    def longer(turn):
        asked.append(turn)
        return None if turn.text == "fork" else len(turn.text)

    graph, before = rated({"long": Reward(longer, 0.5, "turn", ("a",) if seed % 2 else ())}, seed)
    mine = [0, 2, 3]  # the ends of turns of episodes that count; 1 and 2 are pieces of one turn
    rates = [number for number in mine if not seed % 2 or graph.nodes[number].role == "a"]
    texts = {0: "t0 ", 2: "t1 t2 ", 3: "fork"}
    assert [turn.text for turn in asked] == [texts[number] for number in rates]
    assert [turn.tokens for turn in asked] == [{0: 1, 2: 5, 3: 1}[number] for number in rates]
    said = {number: len(texts[number]) for number in rates if number != 3}
    for node in graph.nodes:
        assert node.reward == before[node.id] + 0.5 * said.get(node.id, 0)
        assert node.extra == ({"reward/long": said[node.id]} if node.id in said else {})
    for episode in graph.episodes[:2]:
        path = graph.path(episode.id)
        found = [said[number] for number in path if number in said]
        assert episode.reward_info == {"long": sum(found) / len(found) if found else 0.0}
        assert episode.ret == sum(graph.nodes[number].reward for number in path)
    assert graph.episodes[2].reward_info == {} and graph.episodes[2].ret == 0.0


@pytest.mark.parametrize("seed", range(4))
def test_numbers_of_episodes_go_to_their_last_turns(seed):
    async def half(episode):
        return episode.ret / 2 if episode.truncated else None

    graph, before = rated({"half": Reward(half, 2.0, roles=("a",) if seed % 2 else ())}, seed)
    assert [episode.reward_info for episode in graph.episodes[:2]] == [{"half": 0.0}, {"half": 5.0}]
    # The only turn of `a` in the fork is shared, so that its own last turn is given what is said of it.
    paid = 3 if not seed % 2 or graph.nodes[0].role == "a" else None
    after = [value + (10.0 if number == paid else 0.0) for number, value in enumerate(before)]
    assert [node.reward for node in graph.nodes] == after
    assert [node.extra for node in graph.nodes] == [
        {"reward/half": 5.0} if n == paid else {} for n in range(len(before))
    ]
    assert graph.episodes[1].ret == 10.0 + (10.0 if paid else 0.0)


def test_agents_that_spoke_alone_are_paid_alone():
    rollout = rollout_of()
    episode = rollout.start()
    for agent in ("a", "b", "a", "c"):
        grow(episode, agent, text=agent)
    episode.end("finished", None)
    asyncio.run(rate(rollout.graph, {}, {"one": Reward(lambda e: 1, agents=("a",), roles=("b", "none"))}))
    assert [node.reward for node in rollout.graph.nodes] == [0, 1, 1, 0]
    asyncio.run(rate(rollout.graph, {}, {"zero": Reward(lambda e: 0.0)}))
    assert [node.extra.get("reward/zero") for node in rollout.graph.nodes] == [None, None, None, 0.0]
    assert episode.record.ret == 2.0 and episode.record.reward_info == {"one": 1.0, "zero": 0.0}
    asyncio.run(rate(rollout.graph, {}, {}))
    asyncio.run(rate(rollout_of().graph, {}, {"x": Reward(lambda e: 1)}))
    seen = []
    asyncio.run(
        rate(rollout.graph, {"t": 1}, {"see": Reward(lambda e, more: seen.append((e, more)), options={"more": 3})})
    )
    ((found, more),) = seen
    assert more == 3 and found.text == "c" and found.tokens == 4 and [t.number for t in found.turns] == [0, 1, 2, 3]
    assert found.ret == 2.0 and not found.truncated and found.success is None and found.task == {"t": 1}
    assert found.messages == found.turns[-1].messages and found.messages[-1]["content"] == "c"


@pytest.mark.parametrize(("says", "words"), [("five", "reward function returned"), (float("nan"), "hier.rewards.x: ")])
def test_what_is_no_number_is_refused(says, words):
    with pytest.raises(RolloutError, match=words):
        rated({"x": Reward(lambda item: says)})

    def fails(item):
        raise KeyError("gone")

    with pytest.raises(RolloutError, match=r"hier\.rewards\.x: the reward function raised KeyError"):
        rated({"x": Reward(fails, per="turn")})

    def refuses(item):
        raise RolloutError("as it is.")

    with pytest.raises(RolloutError, match=r"^as it is\.$"):
        rated({"x": Reward(refuses)})
    for wrong in (math.nan, math.inf):
        with pytest.raises(ValueError, match="finite"):
            RewardOptions("f", wrong)
    assert RewardOptions("f").weight == Reward(len).weight == 1.0


# Tools and templates


def test_calls_are_made_by_tokens_where_there_are_tools():
    async def acts(episode):
        step = await episode.reset()
        context = episode.context("agent").observe("x")
        tools = ToolUse(context, replace(step, info=first))
        turn = await episode.generate(context)
        acted.append((context.tools, context.stop_tokens))
        said = []

        class Answers:
            async def act(self, action, turn):
                said.append(action)
                return answer

        await tools.act(Answers(), turn)
        acted.append((said[0], context._chat[-1], [m.content for m in context.new_messages(True)]))

    acted = []
    first, answer = {}, StepResult("answer")
    roll(worker=acts)
    assert acted == [((), ()), ("right", {"role": "assistant", "content": "right"}, ["answer"])]
    acted = []
    first = {"tools": [], "stop_tokens": [5]}
    messages = [{"role": "tool", "content": "one"}, {"role": "tool", "content": "two"}]
    answer = StepResult("x", info={"messages": messages, "message": {"role": "assistant", "content": "", "calls": [1]}})
    roll(worker=acts)
    assert acted[0] == ((), (5,)) and acted[1][0] != "right"
    assert acted[1][1:] == ({"role": "assistant", "content": "", "calls": [1]}, ["one", "two"])
    for end in ({"done": True}, {"truncated": True}):
        acted, answer = [], StepResult("x", **end)
        roll(worker=acts)
        assert acted[1][2] == []


def test_templates_are_filled_and_know_their_sources():
    turn = type("T", (), {"node": object()})()
    known = {"a": "1", "b": "2"}
    assert fill("{a}-{b}", known, "x") == "1-2"
    for wrong in ("{c}", "{0}", "{"):
        with pytest.raises(RecipeError, match=r"hier\.worker\.x: .* cannot be filled .*: a, b\."):
            fill(wrong, known, "x")
    assert source_nodes("{a.x} {b[0]}", {"a": [turn], "b": [turn], "c": [turn]}) == [turn.node] * 2
    assert source_nodes("plain", {"a": [turn]}) == []
    context = Context(PlainRenderer(WordTokenizer()), "role", 0)
    observe(context, type("O", (), {"t": "see {a}"}), "t", known)
    assert context.new_messages(True)[0].content == "see 1" and context.new_messages(True)[0].sources == ()
    for good in (None, "", "x", "do {content}", "{{}} {content}"):
        check_action_template("t", good)
    for bad in ("{other}", "{}", "{content"):
        with pytest.raises(ValueError, match=r"t may use \{content\} only"):
            check_action_template("t", bad)
    assert content_of(None, "x") is None and content_of("do {content}!", "do it !") == "it"
    assert content_of("do {content}!", "do it") is None and content_of("do {content}!", "it!") is None
    assert content_of("aba{content}ba", "ababa") == "" and content_of("aba{content}aba", "ababa") is None
    assert content_of("{{{content}}}", "{x}") == "x" and content_of("same", "same") == ""


def test_long_texts_are_worked_on_beside_the_loop():
    import threading

    async def thread_of(length):
        return await off_loop(length, lambda value: (value, threading.current_thread() is threading.main_thread()), 3)

    assert LONG == 50_000
    assert asyncio.run(thread_of(LONG)) == (3, True) and asyncio.run(thread_of(LONG + 1)) == (3, False)


def test_random_numbers_come_from_the_root_seed():
    for seed in (5, 0, None):
        rollout = rollout_of(seed=seed)
        assert rollout._environment_seed == derive(seed or 0, "environment", 7)
        assert rollout.rng("a").random() == random.Random(derive(seed or 0, rollout.seed_name, "a")).random()
        rng = EpisodeView(rollout.start()).rng
        assert rng.random() == random.Random(derive(seed or 0, f"{rollout.seed_name}/0", "worker")).random()


def test_the_last_turn_is_paid_for_roles_whose_last_turn_is_shared():
    rollout = rollout_of()
    trunk = rollout.start()
    for agent in ("a", "b", "b", "b"):
        grow(trunk, agent, text=agent)
    fork = rollout.start()
    fork.record.leaf = 0
    for _ in range(3):
        grow(fork, "c")
    for episode in (trunk, fork):
        episode.end("finished", None)
    asyncio.run(rate(rollout.graph, {}, {"x": Reward(lambda episode: 1.0, roles=("a",))}))
    assert [node.reward for node in rollout.graph.nodes] == [0, 0, 0, 1, 0, 0, 1]


def test_only_the_first_piece_of_a_turn_is_limited_where_nobody_watches():
    pieces = []

    async def body(rollout):
        (episode,) = start_episodes(rollout, 1)
        await advance_turn(rollout, [episode], 2)
        pieces.extend(len(node.action) for node in episode.nodes)

    roll(body, answer="a b c d e")
    assert pieces == [2, 6]


def test_a_piece_that_is_cut_keeps_the_text_before_it():
    texts = []

    async def body(rollout):
        (episode,) = start_episodes(rollout, 1)
        for tokens in (1, 1, 3):
            await episode.step(tokens)
        last = episode.last_node
        first = rollout.split(last, 1)
        texts.extend([node.text for node in episode.nodes])
        assert first.partial and "".join(texts) == rollout.renderer.decode(action_tokens(episode))

    roll(body, answer=lambda prompt, sampling: {">": "a b c d", "a": "b c d", "b": "c d e"}.get(prompt[-1], "z"))
    assert texts == ["a", " b", " c", " d e"]


def test_a_resumed_turn_begins_without_what_happened_to_it():
    async def leaves(rollout):
        episode = await rollout.start().run(turns=2)
        episode.nodes[0].truncated = True
        episode.prune(EndReason.LEFT_UNFINISHED)

    first, policy = roll(
        leaves,
        answer=lambda prompt, sampling: "left" if prompt.startswith("at 0 <act>") and len(prompt) < 12 else "right",
    )
    assert first.nodes[0].reward == pytest.approx(-0.1) and first.nodes[0].cached_tokens == 2

    async def resumes(rollout):
        (unfinished,) = rollout.unfinished
        await rollout.resume(unfinished, why="again").run()

    left = list(UnfinishedEpisode.left_in(first))
    again, _ = roll(resumes, step=2, unfinished=left, tokenizer=policy.tokenizer)
    assert [node.reward for node in again.nodes[:2]] == [node.reward for node in first.nodes]
    assert [node.truncated for node in again.nodes] == [False] * len(again.nodes) and again.episodes[
        0
    ].status == "finished"
    assert [(node.prompt_tokens, node.cached_tokens) for node in again.nodes[:2]] == [(0, 0)] * 2
    assert [node.decision.get("carried") for node in again.nodes[:3]] == [1, 1, None]
    assert [node.decision.get("why") for node in again.nodes[:2]] == ["again", None]
    assert again.counts["carried_tokens"] == sum(len(node.action) for node in first.nodes)
    assert [node.valid for node in again.nodes[:2]] == [False, True]


def test_one_turn_may_be_left_unfinished():
    rollout = rollout_of(step=4)
    grow(rollout.start())
    rollout.episodes[0].prune(EndReason.LEFT_UNFINISHED)
    del rollout.graph.request["validate"]
    (left,) = UnfinishedEpisode.left_in(rollout.graph)
    assert len(left.nodes) == 1 and left.worker_seed_name == "4/7/0/0"
    kept = UnfinishedEpisodes(1)
    for task in ("a", "a", "b"):
        kept.keep(task, rollout.graph)
    assert kept.take("a", 5) == () and len(kept.take("b", 5)) == 1


@pytest.mark.parametrize(("levels", "learning"), [(None, [0, 1]), (frozenset({1}), [1]), (frozenset(), [])])
def test_a_worker_knows_which_levels_learn(levels, learning):
    episode = EpisodeView(rollout_of(levels=levels).start())
    assert [level for level in (0, 1) if episode.learns(level)] == learning


def test_a_fork_that_is_left_unfinished_comes_from_the_first_of_its_line():
    rollout = rollout_of(step=4)
    line = [EpisodeRecord(id=number, source=number - 1) for number in range(3)]
    rollout.graph.episodes[:] = line
    assert {_origin(rollout.graph, record) for record in line} == {f"{task_seed_name(4, 7, False)}/0"}
    line[0].decision["resumed"] = {"origin": "1/7/0/5"}
    assert _origin(rollout.graph, line[2]) == "1/7/0/5"


def test_the_first_error_of_several_is_raised():
    async def fails():
        raise RolloutError("this one.")

    left = []

    async def waits():
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.01)
            left.append("in order")

    async def both():
        with pytest.raises(RolloutError, match="this one"):
            await rollout_of().gather([waits(), fails()])
        assert left == ["in order"], "what is cancelled has ended when the error is raised"

    asyncio.run(both())


def test_a_world_that_forks_is_opened_once():
    opened = []

    class Counted(InlinePool):
        async def open(self, task, seed):
            opened.append(seed)
            return await super().open(task, seed)

    async def opens(forks):
        rollout = rollout_of()
        setup = replace(rollout.setup, environments=Counted(Corridor, forks))
        rollout = Rollout(rollout.request, setup, rollout.make_worker)
        handles = [(await rollout.open_environment())[0] for _ in range(3)]
        await rollout.close()
        return len({id(handle) for handle in handles})

    assert asyncio.run(opens("native")) == 3 and len(opened) == 1
    assert asyncio.run(opens("replay")) == 3 and len(opened) == 4


def test_a_sampler_that_is_too_slow_by_itself_is_an_error():
    async def body(rollout):
        raise asyncio.TimeoutError

    for budget in (BudgetOptions(), BudgetOptions(wall_s=600.0), BudgetOptions(wall_s=0.9)):
        with pytest.raises(asyncio.TimeoutError):
            roll(body, budget=budget)

    async def sleeps(rollout):
        await asyncio.sleep(60)

    graph, _ = roll(sleeps, budget=BudgetOptions(wall_s=0.05))
    assert graph.counts["budget_ended"] == 1


def test_texts_are_tokenised_without_special_tokens():
    class Marked(WordTokenizer):
        def encode(self, text, add_special_tokens=True):
            return [*([0] if add_special_tokens else []), *super().encode(text)]

        def decode(self, token_ids, skip_special_tokens=False):
            return super().decode([each for each in token_ids if each > 1 or not skip_special_tokens])

    tokenizer = Marked()
    renderer = PlainRenderer(tokenizer)
    assert 0 not in renderer.render([], [], [{"role": "user", "content": "a b"}])
    a = tokenizer.encode("a", False)[0]
    assert not renderer.ends([a, a], ("<end>",)) and not completes(tokenizer, [a, 1], ("<end>",))
