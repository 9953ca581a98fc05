"""How a turn gets from a sampler to the policy, policies by name, and rewards of several agents."""

from __future__ import annotations

import ast
import asyncio
import sys
from pathlib import Path

import pytest

from tests.fixtures.corridor import Corridor
from verl_hier.environments.base import Environment, StepResult
from verl_hier.errors import RolloutError
from verl_hier.host.specs import NoOptions
from verl_hier.rollout import EndReason, EpisodeOver, Rollout, Sampler, Worker
from verl_hier.rollout.episode_state import EpisodeState
from verl_hier.testing.rollout import ScriptedPolicy, WordTokenizer, roll_out_scripted
from verl_hier_plugins.samplers.independent import Independent
from verl_hier_plugins.workers.react import React, ReactOptions

ROOMS = Path(__file__).parents[3] / "verl_hier"


def frames() -> list[str]:
    """Functions of verl_hier on the stack of the caller's caller, innermost first, up to `advance`."""
    found, frame = [], sys._getframe(2)
    while frame is not None and frame.f_code.co_name != "advance":
        if Path(frame.f_code.co_filename).is_relative_to(ROOMS):
            found.append(frame.f_code.co_name)
        frame = frame.f_back
    return found


def test_a_turn_crosses_at_most_five_frames_between_advance_and_the_policy(monkeypatch):
    before: list[list[str]] = []
    inside: list[list[str]] = []

    class Permits(asyncio.Semaphore):
        def release(self):
            before.append(frames())
            super().release()

    class Measured(ScriptedPolicy):
        async def generate(self, prompt, sampling, conversation):
            inside.append(frames())
            return await super().generate(prompt, sampling, conversation)

    original = EpisodeState.__init__

    def with_permits(self, *args, **options):
        original(self, *args, **options)
        self.permits = Permits(0)

    monkeypatch.setattr(EpisodeState, "__init__", with_permits)
    asyncio.run(
        roll_out_scripted(
            environment=Corridor,
            worker=lambda: React(ReactOptions()),
            sampler=Independent(NoOptions()),
            answer=lambda prompt, sampling: "right",
            policy=Measured,
        )
    )
    assert before and inside
    assert {tuple(path) for path in inside} == {("sample_node", "generate", "play")}
    # `advance` starts a task of its own for each episode where there are several; its worker waits in another one.
    assert all(len(path) + len(inside[0]) <= 5 for path in before)


def test_a_turn_of_one_piece_is_decoded_once():
    decoded: list[list[int]] = []

    class Counted(WordTokenizer):
        def decode(self, token_ids, skip_special_tokens=False):
            decoded.append(token_ids)
            return super().decode(token_ids, skip_special_tokens)

    graph, _ = asyncio.run(
        roll_out_scripted(
            environment=Corridor,
            worker=lambda: React(ReactOptions()),
            sampler=Independent(NoOptions()),
            answer=lambda prompt, sampling: "right",
            tokenizer=Counted(),
        )
    )
    assert [node.text for node in graph.nodes] == ["right"] * len(graph.nodes)
    assert decoded.count(graph.nodes[0].action[:-1]) == len(graph.nodes)


def test_there_is_no_import_circle_in_the_room():
    needs: dict[str, set[str]] = {}
    for path in (ROOMS / "rollout").glob("*.py"):
        if path.stem == "__init__":
            continue
        imports = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)]
        modules = {node.module or "" for node in imports}
        assert "verl_hier.rollout" not in modules
        needs[path.stem] = {m.rpartition(".")[2] for m in modules if m.startswith("verl_hier.rollout.")}
    while free := [name for name, met in needs.items() if not met]:
        needs = {name: met - set(free) for name, met in needs.items() if name not in free}
    assert not needs


class Two(Worker):
    """Two agents in turns; the second one may have a policy of its own."""

    policy = "default"

    async def run(self, episode):
        step = await episode.reset()
        agents = [episode.context("a"), episode.context("b", policy=self.policy)]
        number = 0
        while not step.done:
            turn = await episode.generate(agents[number % 2].observe(step.text))
            step = await episode.act(turn.text)
            number += 1


class Duel(Environment):
    """After each step the agent that did not act is rewarded, and one that never acts; over after four."""

    def reset(self, task, seed):
        self._steps = 0
        return StepResult("go")

    def step(self, action):
        self._steps += 1
        other = "b" if self._steps % 2 else "a"
        amount = float(self._steps)
        return StepResult("go on", 0.5, done=self._steps == 4, rewards={other: amount, "c": 100.0})


class OneRun(Sampler):
    async def sample(self, rollout: Rollout) -> None:
        await rollout.start().run()


def roll(sampler: Sampler, worker=Two):
    return asyncio.run(
        roll_out_scripted(environment=Duel, worker=worker, sampler=sampler, answer=lambda p, s: "hit", n=1)
    )[0]


def test_rewards_of_several_agents_are_credited_to_their_last_turns():
    graph = roll(OneRun())
    assert [node.agent for node in graph.nodes] == ["a", "b", "a", "b"]
    # Step 1 rewards b, which has no turn yet; step 2 rewards a's first turn, step 3 b's first, step 4 a's second one.
    assert [node.reward - 100.5 for node in graph.nodes] == [1 + 2, 3, 4, 0]
    assert graph.episodes[0].ret == sum(node.reward for node in graph.nodes) == 412.0
    assert graph.counts["rewards_without_turn"] == 5


class ForkLater(Sampler):
    """A whole episode, then a fork after each of its turns."""

    async def sample(self, rollout: Rollout) -> None:
        first = await rollout.start().run()
        for after in (3, 1, 2):
            await (await first.fork(after=after)).run()


def test_a_fork_does_not_begin_with_rewards_of_what_only_its_source_did():
    graph = roll(ForkLater())
    assert [episode.ret for episode in graph.episodes] == [412.0] * 4
    assert {sum(graph.nodes[i].reward for i in graph.path(e.id)) for e in graph.episodes} == {412.0}


def test_a_context_names_its_policy():
    class Other(Two):
        policy = "critic"

    with pytest.raises(RolloutError, match=r"the worker asks for the policy 'critic'; this run has default\."):
        roll(OneRun(), Other)
    assert {node.policy for node in roll(OneRun()).nodes} == {"default"}


def test_reasons_are_stored_as_plain_strings():
    assert EpisodeOver(EndReason.MAX_TURNS).reason == "max_turns" and type(EpisodeOver("x").reason) is str

    class Stop(Sampler):
        async def sample(self, rollout):
            episode = rollout.start()
            await episode.step()
            episode.stop(EndReason.NOT_CHOSEN)

    error = roll(Stop()).episodes[0].error
    assert error == "not_chosen" and type(error) is str
