"""More episodes than needed: who is first, what is carried over, and what it is when it goes on in a later step."""

from __future__ import annotations

import asyncio
import dataclasses
import random

import pytest

from tests.fixtures.agent_loop_worker import idle_worker
from tests.fixtures.corridor import Corridor
from tests.fixtures.sampler_cases import (
    Steady,
    Trap,
    check_budgets,
    check_leaves,
    check_repeatable,
    parts,
    spec,
    trained_turns,
    walk,
    wander,
)
from verl_hier.errors import RecipeError
from verl_hier.graph import RolloutGraph, graph_rows
from verl_hier.host.options import build_options
from verl_hier.rollout import EndReason, Generation, Sampler, Worker
from verl_hier.rollout.budget import BudgetOptions
from verl_hier.rollout.recorded_policy import differences
from verl_hier.rollout.unfinished import UnfinishedEpisode, UnfinishedEpisodes, sampled_earlier
from verl_hier.testing.rollout import WordTokenizer, replay_scripted, roll_out_scripted
from verl_hier_plugins.samplers.overprovision import Overprovision, OverprovisionOptions


def make(**options):
    return lambda: Overprovision(OverprovisionOptions(**options))


def straight(prompt, sampling):
    return "right"


def aged(step):
    """A policy whose weights and log-probs are those of a step."""

    class Aged(Steady):
        async def generate(self, prompt, sampling, conversation) -> Generation:
            answer = await super().generate(prompt, sampling, conversation)
            logprobs = [-float(step)] * len(answer.token_ids)
            return dataclasses.replace(answer, logprobs=logprobs, version=(step, step))

    return Aged


def ask(sampler=None, *, step=1, n=3, answer=walk, policy=None, **changes):
    """A rollout of a step, and the policy that it asked."""
    graph, asked = asyncio.run(
        roll_out_scripted(
            **parts(sampler or make()(), **changes), answer=answer, n=n, step=step, policy=policy or aged(step)
        )
    )
    check_leaves(graph)
    return graph, asked


def roll(*arguments, **asked):
    return ask(*arguments, **asked)[0]


def test_the_first_to_be_complete_stay_and_the_others_are_carried_over():
    graph = roll()
    assert len(graph.episodes) == 6 and not graph.short
    turns = {e.id: len(graph.path(e.id)) for e in graph.episodes}
    done = [e.id for e in graph.complete()]
    left = [e for e in graph.episodes if e.error == EndReason.LEFT_UNFINISHED]
    assert len(done) == 3 and len(left) == 3 == graph.counts["carried_over"]
    rounds = max(turns[e] for e in done)
    assert sorted(done) == sorted(sorted(turns, key=lambda e: (turns[e] if e in done else rounds + 1, e))[:3])
    assert all(turns[e.id] == rounds for e in left), "as far as the last of those that were first"


def test_of_equals_the_lower_numbers_are_first():
    graph = roll(answer=straight)
    assert [e.status for e in graph.episodes] == ["finished"] * 3 + ["pruned"] * 3
    assert all(e.success for e in graph.episodes), "what is carried over may be complete"


def test_carried_episodes_go_on_where_they_were_left():
    first = roll(step=1)
    unfinished = list(UnfinishedEpisode.left_in(first))
    assert len(unfinished) == 3 and {c.step for c in unfinished} == {c.began for c in unfinished} == {1}
    second, policy = ask(step=3, unfinished=unfinished)
    resumed = [e for e in second.episodes if "resumed" in e.decision]
    assert [e.id for e in resumed] == [0, 1, 2] and second.counts["resumed"] == 3
    for old, record in zip(unfinished, resumed, strict=True):
        path = [second.nodes[i] for i in second.path(record.id)]
        mine = path[: len(old.nodes)]
        for was, now in zip(old.nodes, mine, strict=True):
            for name in ("observation", "action", "logprobs", "policy_version", "text", "stop_reason", "turn"):
                assert getattr(now, name) == getattr(was, name), name
            assert now.decision["carried"] == 1 and now.prompt_tokens == 0
        assert [node.reward for node in mine] == [node.reward for node in old.nodes], "the world says it again"
        assert [node.anchor for node in mine] == [node.anchor for node in old.nodes]
    tokens = sum(len(node.action) for old in unfinished for node in old.nodes)
    assert second.counts["carried_tokens"] == tokens
    assert second.counts["replayed_calls"] == sum(len(old.nodes) for old in unfinished)
    new = [node for node in second.nodes if not sampled_earlier(node)]
    assert second.counts["environment_calls"] == len(new) == len(policy.prompts)
    assert sorted(policy.prompts) == sorted(second.prompt(node.id) for node in new), "nothing is asked twice"


def test_tokens_of_two_policy_versions_keep_their_own_in_the_rows():
    first = roll(step=1)
    second = roll(step=3, unfinished=list(UnfinishedEpisode.left_in(first)))
    rows = graph_rows(second, lambda node: True)
    mixed = 0
    for row in rows:
        versions = set()
        for turn, mask, logprob in zip(row.turn_index, row.mask, row.logprobs, strict=True):
            if mask:
                node = second.nodes[turn]
                low, high = node.policy_version
                assert low == high == node.decision.get("carried", 3) and logprob == -float(low)
                versions.add(low)
        mixed += versions == {1, 3}
    assert mixed, "no row has tokens of both"


def test_a_row_tells_the_trainer_the_versions_it_spans():
    pytest.importorskip("verl_hier.compat.agent_loop")
    first = roll(step=1)
    second = roll(step=3, unfinished=list(UnfinishedEpisode.left_in(first)))
    worker = idle_worker()
    for row in graph_rows(second, lambda node: True):
        output = worker._output(second, row)
        ages = {second.nodes[turn].policy_version[0] for turn in trained_turns(row)}
        told = output.extra_fields["min_global_steps"], output.extra_fields["max_global_steps"]
        assert told == (min(ages), max(ages)) and output.response_logprobs == row.logprobs


class LeavesAll(Sampler):
    """One turn of one episode, which is then left."""

    async def sample(self, rollout):
        running = [rollout.resume(c) for c in rollout.unfinished] or [rollout.start()]
        await rollout.advance(running)
        for episode in running:
            episode.discard(EndReason.LEFT_UNFINISHED)


def test_an_episode_may_be_carried_over_twice():
    left = []
    for step in (2, 4, 7):
        graph = roll(LeavesAll(), step=step, unfinished=left, answer=straight)
        left = list(UnfinishedEpisode.left_in(graph))
    assert [node.decision["carried"] for node in left[0].nodes] == [2, 4, 7]
    assert [node.policy_version for node in left[0].nodes] == [[2, 2], [4, 4], [7, 7]]
    assert (left[0].began, left[0].step) == (2, 7)


def test_complete_surplus_goes_on_without_the_policy():
    first = roll(answer=straight)
    second = roll(step=2, unfinished=list(UnfinishedEpisode.left_in(first)), answer=None)
    assert [e.status for e in second.episodes[:3]] == ["finished"] * 3 and not second.short
    assert {e.ret for e in second.complete()} == {1.0} and second.counts["carried_tokens"] == 3 * 4 * 2


def test_too_old_ones_are_dropped():
    unfinished = list(UnfinishedEpisode.left_in(roll(step=1)))
    graph = roll(step=6, unfinished=unfinished)
    assert graph.counts["carried_too_old"] == 3 and "resumed" not in graph.counts
    assert roll(step=5, unfinished=unfinished).counts["resumed"] == 3


class Moody(Worker):
    """Asks with a random word of its own."""

    async def run(self, episode):
        step = await episode.reset()
        context = episode.context("agent")
        while not step.done:
            context.observe(f"{step.text} {episode.rng.choice(['go', 'run', 'walk', 'crawl'])}")
            step = await episode.act((await episode.generate(context)).text)


def test_the_workers_own_draws_are_repeated():
    words = WordTokenizer()
    words.encode("at 0 1 2 3 4 right left go run walk crawl")
    known = {"worker": Moody, "tokenizer": words}
    first = roll(**known)
    unfinished = list(UnfinishedEpisode.left_in(first))
    second = roll(step=2, unfinished=unfinished, **known)
    assert second.counts["resumed"] == len(unfinished) and "failed_replay_mismatch" not in second.counts
    # And once more: the draws go back to where the episode began.
    third = roll(step=3, unfinished=list(UnfinishedEpisode.left_in(second)), **known)
    assert "failed_replay_mismatch" not in third.counts


class Renamed(Corridor):
    """A corridor whose places have other names."""

    def _answer(self, *arguments, **more):
        step = super()._answer(*arguments, **more)
        return dataclasses.replace(step, text=step.text.replace("at", "near") if self._at else step.text)


def test_another_world_costs_the_resumed_episode_only():
    unfinished = list(UnfinishedEpisode.left_in(roll(step=1)))
    moved = sum(any(node.reward >= 0 for node in old.nodes[:-1]) for old in unfinished)
    graph = roll(step=2, unfinished=unfinished, environment=lambda: Renamed(4))
    lost = [e for e in graph.episodes if e.status == "failed"]
    assert len(lost) == graph.counts["failed_replay_mismatch"] == moved > 0
    assert sum(1 for _ in graph.complete()) == 3 and not graph.short


def test_a_resumed_rollout_can_be_made_again_from_the_file():
    first = roll(step=1)
    second, policy = ask(step=3, unfinished=list(UnfinishedEpisode.left_in(first)))
    stored = RolloutGraph.from_dict(second.to_dict())
    again = asyncio.run(replay_scripted(stored, policy.tokenizer, **parts(make()())))
    assert differences(stored, again) == []
    assert again.counts["resumed"] == 3


def test_forks_of_a_resumed_episode_share_its_old_turns():
    class Branches(Sampler):
        async def sample(self, rollout):
            episode = rollout.resume(rollout.unfinished[0])
            await rollout.advance([episode])
            await rollout.run([episode, await episode.fork(after=1), await episode.fork()])

    first = roll(LeavesAll(), step=1, answer=straight)
    graph = roll(Branches(), step=2, unfinished=list(UnfinishedEpisode.left_in(first)), n=1, answer=straight)
    assert [(e.status, len(graph.path(e.id))) for e in graph.episodes] == [("finished", 4)] * 3
    assert graph.nodes[graph.path(1)[0]].decision["carried"] == 1
    assert sampled_earlier(graph.nodes[0]) and not sampled_earlier(graph.nodes[graph.path(1)[1]])


# ---- the store -------------------------------------------------------------------------------------------------------


def graph_of(step, left):
    """A rollout that leaves so many episodes."""
    graph = roll(make(launch=1 + left)(), step=step, n=1, answer=straight)
    assert len(list(UnfinishedEpisode.left_in(graph))) == left
    return graph


def test_the_store_gives_back_once_and_only_to_later_steps():
    store = UnfinishedEpisodes(10)
    store.keep("a", graph_of(3, 2))
    assert store.take("b", 4) == () and len(store.take("a", 4)) == 2 and store.take("a", 4) == ()
    store.keep("a", graph_of(3, 2))
    assert store.take("a", 3) == (), "a run that was set back has not left this yet"
    assert len(store) == 0


def test_the_store_is_bounded_and_drops_the_oldest():
    store = UnfinishedEpisodes(4)
    for name, left in (("a", 2), ("b", 1), ("c", 3)):
        store.keep(name, graph_of(1, left))
    assert len(store) == 4 and [len(store.take(name, 2)) for name in "abc"] == [0, 1, 3]
    store.keep("a", graph_of(1, 6))
    assert len(store.take("a", 2)) == 4


# ---- what every sampler keeps ----------------------------------------------------------------------------------------


def test_a_broken_world_costs_its_own_episode():
    graphs = [roll(answer=wander, seed=s, environment=lambda: Trap(4)) for s in range(12)]
    lost = [graph for graph in graphs if any(e.status == "failed" for e in graph.episodes)]
    assert lost
    for graph in lost:
        failed = sum(e.status == "failed" for e in graph.episodes)
        assert sum(1 for _ in graph.complete()) == min(3, 6 - failed) and graph.short == (failed > 3)


def test_the_same_seed_makes_the_same_tree():
    check_repeatable(make(), n=3)


class Slow(Steady):
    """Answers after a random while."""

    async def generate(self, prompt, sampling, conversation) -> Generation:
        await asyncio.sleep(random.random() / 1000)
        return await super().generate(prompt, sampling, conversation)


def test_the_same_seed_goes_on_the_same_way():
    unfinished = list(UnfinishedEpisode.left_in(roll(step=1, answer=wander)))
    trees = [
        roll(step=2, unfinished=unfinished, answer=wander, policy=speed).to_dict() for speed in (Steady, Slow, Slow)
    ]
    assert trees[0] == trees[1] == trees[2]


def test_budgets():
    check_budgets(make(), n=3)
    unfinished = list(UnfinishedEpisode.left_in(roll(step=1)))
    for budget in (BudgetOptions(environment_calls=4), BudgetOptions(tokens=9), BudgetOptions(leaves=2)):
        graph = roll(step=2, unfinished=unfinished, budget=budget)
        for used, limit in graph.budget.values():
            assert used <= limit
        assert graph.counts["carried_tokens"] > 0, "what was paid for costs nothing again"


def test_what_cannot_work_is_refused():
    registered = spec("overprovision")
    assert not registered.needs_fork and registered.episodes(build_options(registered, {}), 1) == 1
    with pytest.raises(RecipeError, match=r"actor_rollout_ref.rollout.n: .* n >= 1; got 0"):
        registered.episodes(build_options(registered, {}), 0)
    with pytest.raises(RecipeError, match=r"launch must be above 1, got 1.0"):
        build_options(registered, {"launch": 1})
    with pytest.raises(RecipeError, match="max_age: must be at least 1, got 0"):
        build_options(registered, {"max_age": 0})
