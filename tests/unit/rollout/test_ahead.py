"""Turns that are announced are generated side by side, and nothing else changes."""

from __future__ import annotations

import asyncio
import random

import pytest

from verl_hier.rollout import EpisodeOver, Worker
from verl_hier.rollout.budget import BudgetOptions
from verl_hier.rollout.recorded_policy import differences
from verl_hier.rollout.sampler import Sampler
from verl_hier.testing.line import Line
from verl_hier.testing.rollout import ScriptedPolicy, SideBySide, WordTokenizer, replay_scripted, roll_out_scripted


def answer(prompt, sampling):
    return random.Random(f"{sampling.seed}{prompt}").choice(("right", "left", "right right"))


class Trio(Worker):
    """Three agents walk the line in rounds, each in a context of its own."""

    announce = True
    announced_tokens = None

    async def run(self, episode):
        step = await episode.reset()
        contexts = [episode.context("agent", agent=f"agent {number}") for number in range(3)]
        while True:
            for context in contexts:
                context.observe(step.text)
            if self.announce:
                episode.expect(dict.fromkeys(contexts, self.announced_tokens))
            for context in contexts:
                turn = await episode.generate(context)
                step = await episode.act(turn.text.split()[0])
                if step.done or step.truncated:
                    return


class OneByOne(Trio):
    announce = False


class Otherwise(Trio):
    """Announces turns of another length than it asks for."""

    announced_tokens = 3


class Slow(ScriptedPolicy):
    """Counts how many requests are under way."""

    most = now = requests = 0

    async def generate(self, prompt, sampling, conversation):
        cls = type(self)
        cls.requests += 1
        cls.now += 1
        cls.most = max(cls.most, cls.now)
        try:
            await asyncio.sleep(0.001)
            return await super().generate(prompt, sampling, conversation)
        finally:
            cls.now -= 1


class Forks(Sampler):
    """One episode, forked in the middle of a round."""

    async def sample(self, rollout):
        source = rollout.start()
        await source.run(4)
        forks = [await source.fork(after) for after in (1, 2, 3) if after <= len(source.path)]
        await rollout.run([source, *forks])


def played(worker, **options):
    class Counted(Slow):
        most = now = requests = 0

    graph, policy = asyncio.run(roll_out_scripted(worker=worker, answer=answer, policy=Counted, **options))
    return graph, policy


@pytest.mark.parametrize("worker", [Trio, Otherwise])
@pytest.mark.parametrize("sampler", [None, Forks()])
def test_what_happens_is_what_would_happen_one_by_one(worker, sampler):
    graph, _ = played(worker, sampler=sampler, n=2)
    alone, _ = played(OneByOne, sampler=sampler, n=2)
    assert len(alone.nodes) > 3 and differences(alone, graph) == []


def test_announced_turns_are_generated_side_by_side():
    assert played(Trio, n=1)[1].most == 3
    assert played(OneByOne, n=1)[1].most == 1


def test_a_budget_lets_them_wait_for_each_other():
    budget = BudgetOptions(tokens=40)
    graph, policy = played(Trio, n=1, budget=budget)
    alone, _ = played(OneByOne, n=1, budget=budget)
    assert policy.most == 1 and differences(alone, graph) == []


def test_what_was_generated_for_nothing_is_counted():
    graph, policy = played(Trio, n=1)
    assert policy.requests == len(graph.nodes) + graph.counts.get("unused_ahead", 0)
    assert "unused_ahead" not in played(OneByOne, n=1)[0].counts


def test_a_replay_asks_for_no_more_than_was_stored():
    tokenizer = WordTokenizer()
    stored, _ = asyncio.run(roll_out_scripted(worker=Trio, answer=answer, n=2, tokenizer=tokenizer))
    again = asyncio.run(
        replay_scripted(stored, tokenizer, environment=Line, worker=Trio, sampler=SideBySide(), task=None)
    )
    assert differences(stored, again) == []


def test_a_full_context_has_no_room():
    found = []

    class Looks(Worker):
        async def run(self, episode):
            step = await episode.reset()
            context = episode.context("agent").observe(step.text)
            found.append(await episode.room(context))
            context.observe("word " * 5000)
            found.append(await episode.room(context))
            raise EpisodeOver("looked")

    played(Looks, n=1)
    assert 0 < found[0] < 4096 and found[1] == 0


def test_the_sampling_of_a_context_is_its_own_in_training():
    seen = []

    class Warm(Worker):
        async def run(self, episode):
            step = await episode.reset()
            await episode.generate(episode.context("a", sampling={"temperature": 0.3}).observe(step.text))
            await episode.generate(episode.context("b").observe(step.text))

    def note(prompt, sampling):
        seen.append(sampling.temperature)
        return "right"

    asyncio.run(roll_out_scripted(worker=Warm, answer=note, n=1))
    assert seen == [0.3, 1.0]
