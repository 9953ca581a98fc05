"""What nobody waits for: turns without an answer, requests that were given up, worlds that did not open."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from tests.fixtures.corridor import Corridor
from tests.unit.rollout.test_bookkeeping import grow, rollout_of
from tests.unit.rollout.test_turns import Asked, roll
from verl_hier.environments.pool import EnvironmentFailure
from verl_hier.rollout import EndReason, Generation, Rollout
from verl_hier.rollout.ahead import Ahead
from verl_hier.rollout.policy import Sampling
from verl_hier.rollout.unfinished import UnfinishedEpisode
from verl_hier.testing.rollout import InlinePool, WordTokenizer

AFTERWARDS = ("reward", "done", "truncated", "valid", "masks", "prompt_tokens", "cached_tokens", "extra")


async def thinks(episode):
    """Two turns for each answer; the first of them is a thought, to which none comes."""
    step = await episode.reset()
    context = episode.context("agent")
    while not step.done:
        await episode.generate(context.observe(step.text))
        turn = await episode.generate(context.observe("act"))
        step = await episode.act(turn.text)


async def opens(episode):
    """An opening move that no turn has written, and then turns."""
    await episode.reset()
    context, step = episode.context("agent"), await episode.act("left")
    while not step.done:
        turn = await episode.generate(context.observe(step.text))
        step = await episode.act(turn.text)


def test_a_resumed_episode_may_act_before_its_first_turn():
    async def leaves(rollout):
        (await rollout.start().run(turns=1)).prune(EndReason.LEFT_UNFINISHED)

    async def resumes(rollout):
        await rollout.resume(rollout.unfinished[0]).run()

    first, policy = roll(leaves, opens, forks="recorded")
    left = list(UnfinishedEpisode.left_in(first))
    second, _ = roll(resumes, opens, forks="recorded", unfinished=left, tokenizer=policy.tokenizer, step=2)
    assert [episode.status for episode in second.episodes] == ["finished"]
    assert second.nodes[0].action == first.nodes[0].action and len(second.nodes) > 1


def test_a_resumed_turn_without_an_answer_is_as_it_was_sampled():
    async def leaves(rollout):
        (await rollout.start().run(turns=2)).prune(EndReason.LEFT_UNFINISHED)

    async def resumes(rollout):
        await rollout.resume(rollout.unfinished[0], why="again").run()

    first, policy = roll(leaves, thinks)
    thought, act = first.nodes
    assert (thought.reward, thought.done, thought.truncated, thought.valid, thought.extra) == (
        0,
        False,
        False,
        True,
        {},
    )
    said = {"reward": 7.0, "done": True, "truncated": True, "valid": False, "masks": {"m": [[0, 1]]}, "extra": {"x": 1}}
    first.nodes[:] = [replace(thought, **said), replace(act, **said)]
    left = list(UnfinishedEpisode.left_in(first))
    again, _ = roll(resumes, thinks, step=2, unfinished=left, tokenizer=policy.tokenizer)
    counted = {"prompt_tokens": 0, "cached_tokens": 0}
    for was, now in ((thought, again.nodes[0]), (act, again.nodes[1])):
        assert [getattr(now, name) for name in AFTERWARDS] == [
            counted.get(name, getattr(was, name)) for name in AFTERWARDS
        ]


@pytest.mark.parametrize("fails", [True, False])
def test_nobody_hears_of_a_request_that_was_given_up(fails):
    """Neither of its end nor of its error; asyncio tells of both where they are asked for too early, or never."""

    async def request(started):
        started.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            if fails:
                raise ConnectionError("gone") from None
            raise
        return Generation([], [])

    async def give_up():
        told = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: told.append(context))
        ahead, started = Ahead(), asyncio.Event()
        ahead.begin("default", [1], Sampling(), request(started))
        await started.wait()
        assert ahead.take("default", [2], Sampling()) is None and ahead.unused == 1
        del ahead
        for _ in range(3):
            await asyncio.sleep(0)
        return told

    assert asyncio.run(give_up()) == []


def test_a_world_that_did_not_open_has_nothing_to_close():
    class Refusing(InlinePool):
        async def open(self, task, seed):
            raise EnvironmentFailure("raised", "no such game")

    async def opens():
        rollout = rollout_of()
        setup = replace(rollout.setup, environments=Refusing(Corridor, "native"))
        rollout = Rollout(rollout.request, setup, rollout.make_worker)
        with pytest.raises(EnvironmentFailure, match="no such game"):
            await rollout.open_environment()
        await rollout.close()

    asyncio.run(opens())


def test_an_environment_is_freed_when_its_worker_has_let_it_go():
    """At the end of the rollout; that of a fork that never went on has nobody to wait for."""
    there, left_behind = [], []

    class Counted(Corridor):
        def __init__(self):
            super().__init__()
            there.append(self)

        def close(self):
            there.remove(self)

    async def tidies_up(episode):
        try:
            await thinks(episode)
        finally:
            left_behind.append(len(there))

    async def forks(rollout):
        await (await rollout.start().run(turns=2)).fork()

    graph, _ = roll(forks, tidies_up, environment=Counted)
    assert [episode.status for episode in graph.episodes] == ["pruned", "pruned"]
    assert left_behind == [3], "those of both episodes, and the one that all are copied from"
    assert there == []


@pytest.mark.parametrize("wanted", [0, 2])
def test_likely_tokens_are_kept_where_they_are_wanted_and_given(wanted):
    """A server may return them unasked, and may return none."""

    class Unasked(Asked):
        gives = True

        async def generate(self, prompt, sampling, conversation):
            found = await super().generate(prompt, sampling, conversation)
            top = [[(token, -0.5), (7, -2.0), (8, -3.0)] for token in found.token_ids]
            return replace(found, top_logprobs=top if self.gives else [])

    class Mute(Unasked):
        gives = False

    async def body(rollout):
        rollout.top_logprobs = wanted
        episode = rollout.start()
        episode.force(rollout.renderer._tokenizer.encode("a"))
        await episode.step()

    node = roll(body, policy=Unasked)[0].nodes[0]
    assert (
        [len(position) for position in node.top] == [1] + [wanted] * (len(node.action) - 1) if wanted else not node.top
    )
    assert roll(body, policy=Mute)[0].nodes[0].top == []


def test_a_turn_that_is_cut_within_a_character_keeps_its_text():
    class Halves(WordTokenizer):
        """Tokens 11 and 12 are halves of a character."""

        def decode(self, token_ids):
            if not {*token_ids} & {11, 12}:
                return super().decode(token_ids)
            return (
                "".join({11: "<", 12: ">"}.get(each, "a") for each in token_ids)
                .replace("<>", "é")
                .replace("<", "\ufffd")
            )

    rollout = rollout_of()
    tokenizer = Halves()
    renderer = type(rollout.renderer)(tokenizer)
    rollout = Rollout(rollout.request, replace(rollout.setup, renderer=renderer), rollout.make_worker)

    node = grow(rollout.start(), action=[10, 11, 12, 10], logprobs=[-1.0] * 4, text="aéa")
    first = rollout.split(node, 2)
    assert (first.text, node.text) == ("a", "éa")
