"""A stored rollout is made again from its graph alone, decision by decision."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import random

import pytest

from tests.fixtures.corridor import Corridor
from verl_hier.errors import GraphError, RolloutError
from verl_hier.graph import RolloutGraph
from verl_hier.rollout import Sampler
from verl_hier.rollout.end_reason import EndReason
from verl_hier.rollout.recorded_policy import RecordedPolicy, differences
from verl_hier.rollout.recorded_world import RecordedWorld
from verl_hier.rollout.unfinished import UnfinishedEpisode
from verl_hier.testing.rollout import InlinePool, replay_scripted, roll_out_scripted
from verl_hier_plugins.samplers.nested import Nested, NestedOptions
from verl_hier_plugins.workers.planner_executor import PlannerExecutor, PlannerExecutorOptions
from verl_hier_plugins.workers.react import React, ReactOptions

from .test_rollout import plans


def wander(prompt: str, sampling) -> str:
    rng = random.Random(sampling.seed)
    return " ".join(rng.choice(["right", "left"]) for _ in range(rng.randint(1, 5)))


class Everything(Sampler):
    """Pieces, cuts, forced tokens, forks at the tip and before it, random draws."""

    async def sample(self, rollout):
        rng = rollout.rng("everything")
        trunk = rollout.start()
        await rollout.advance([trunk], tokens=2)
        twin = await trunk.fork(draw=rng.random())
        await rollout.run([trunk, twin])
        node = rollout.graph.nodes[trunk.path[0]]
        if len(node.action) > 1:
            rollout.split(node, 1)
        late = [await trunk.fork(after=rng.randrange(len(trunk.path)), draw=rng.random()) for _ in range(3)]
        forced = (await rollout.score(rollout.graph.prompt(trunk.path[0]), [10, 11])).logprobs
        late.append(await trunk.fork(after=0, forced=[10, 11], forced_logprobs=forced))
        await rollout.run(late)


def flat():
    return {"environment": Corridor, "worker": lambda: React(ReactOptions()), "sampler": Everything()}


def nested():
    worker = PlannerExecutorOptions(subgoal_turns=2)
    return {
        "environment": Corridor,
        "worker": lambda: PlannerExecutor(worker),
        "sampler": Nested(NestedOptions(plans=3, select="random")),
    }


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("parts, answer", [(flat, wander), (nested, plans)])
def test_a_replay_makes_the_same_tree(parts, answer, seed):
    stored, policy = asyncio.run(roll_out_scripted(**parts(), answer=answer, seed=seed))
    stored = RolloutGraph.from_dict(stored.to_dict())
    again = asyncio.run(replay_scripted(stored, policy.tokenizer, **parts()))
    assert differences(stored, again) == []


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("parts, answer", [(flat, wander), (nested, plans)])
def test_a_world_that_answers_by_the_actions_alone_is_not_asked_again(parts, answer, seed):
    stored, policy = asyncio.run(roll_out_scripted(**parts(), answer=answer, seed=seed, forks="recorded"))
    stored = RolloutGraph.from_dict(json.loads(json.dumps(stored.to_dict())))
    nobody = {**parts(), "environment": lambda: pytest.fail("the world was asked")}
    again = asyncio.run(replay_scripted(stored, policy.tokenizer, **nobody))
    assert differences(stored, again) == [] and stored.counts["environment_calls"] > 3


def test_a_world_whose_answers_json_cannot_say_is_asked_again():
    class Pictures(Corridor):
        def step(self, action):
            step = super().step(action)
            return dataclasses.replace(step, info={**step.info, "picture": object()}) if self._at == 2 else step

    parts = {**flat(), "environment": Pictures}
    stored, policy = asyncio.run(roll_out_scripted(**parts, answer=wander, seed=1, forks="recorded"))
    assert not RecordedWorld.is_in(stored)
    again = asyncio.run(replay_scripted(stored, policy.tokenizer, **parts))
    assert {place.partition(".")[2] for place in differences(stored, again)} <= {"decision.answers", "reset"}


def test_an_answer_that_is_none_is_refused_in_a_sentence():
    stored, policy = asyncio.run(roll_out_scripted(**flat(), answer=wander, seed=1, forks="recorded"))
    stored.request["reset"] = {"text": 5}
    with pytest.raises(GraphError, match="the graph of task u stores an answer of its world that is none: the `text`"):
        asyncio.run(replay_scripted(stored, policy.tokenizer, **flat()))


class LeavesSome(Sampler):
    """Leaves what two turns have not ended to a later step."""

    async def sample(self, rollout):
        started = [rollout.start() for _ in range(3)]
        for _ in range(2):
            started = await rollout.advance(started)
        for episode in started:
            episode.discard(EndReason.LEFT_UNFINISHED)


class Asked(Corridor):
    """Counts what it is asked."""

    calls = 0

    def reset(self, task, seed):
        Asked.calls += 1
        return super().reset(task, seed)

    def step(self, action):
        Asked.calls += 1
        return super().step(action)


def test_a_resumed_episode_asks_such_a_world_only_for_what_is_new(monkeypatch):
    class Resumes(Sampler):
        async def sample(self, rollout):
            await rollout.run([rollout.resume(old) for old in rollout.unfinished])

    async def as_it_was(self, task, seed, actions, steps):
        counted = Asked.calls
        handle, _ = await self.open(task, seed)
        for action in actions:
            await handle.step(action)
        Asked.calls = counted
        return handle

    monkeypatch.setattr(InlinePool, "resume", as_it_was)
    parts = {"environment": Asked, "worker": lambda: React(ReactOptions())}
    rolled = {**parts, "answer": lambda *_: "right", "forks": "recorded"}
    first, policy = asyncio.run(roll_out_scripted(**rolled, sampler=LeavesSome()))
    unfinished = list(UnfinishedEpisode.left_in(first))
    monkeypatch.setattr(Asked, "calls", 0)
    more = {"unfinished": unfinished, "tokenizer": policy.tokenizer, "step": 2}
    second, policy = asyncio.run(roll_out_scripted(**rolled, **more, sampler=Resumes()))
    assert [episode.status for episode in second.episodes] == ["finished"] * 3
    assert Asked.calls == 3, "the third step of each"
    again = asyncio.run(replay_scripted(second, policy.tokenizer, **parts, sampler=Resumes()))
    assert differences(second, again) == []


def test_a_replay_by_another_sampler_says_where_it_leaves_the_tree():
    stored, policy = asyncio.run(roll_out_scripted(**flat(), answer=wander, seed=1))
    with pytest.raises(RolloutError, match="asks for a turn that the stored rollout does not have"):
        asyncio.run(replay_scripted(stored, policy.tokenizer, **{**flat(), "sampler": Nested(NestedOptions())}))
    other = RolloutGraph.from_dict(stored.to_dict())
    other.nodes[-1].reward += 1
    other.episodes[0].decision["draw"] = 0.5
    assert differences(stored, other) == [f"nodes[{len(stored.nodes) - 1}].reward", "episodes[0].decision.draw"]


def test_a_rollout_without_seed_is_refused():
    stored, _ = asyncio.run(roll_out_scripted(**flat(), answer=wander, seed=1))
    stored.seed = None
    with pytest.raises(RolloutError, match="has no seed"):
        RecordedPolicy(stored)
