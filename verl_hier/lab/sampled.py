"""Rollouts of the product's own samplers in a world of the lab: the coroutines of a training, without any server.

A prompt ends with the token of a state, and an action is one token. Chance in the world follows from the task and the
actions so far, so that a fork finds what its source has left.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from verl_hier.environments.base import StepResult
from verl_hier.graph import RolloutGraph
from verl_hier.graph.build_table import number_turns
from verl_hier.host.specs import Fork, SamplerSpec
from verl_hier.lab.rollouts import Batch, add_knowledge
from verl_hier.lab.world import World
from verl_hier.rollout import EpisodeView, Generation, Limits, Request, Rollout, Sampling, Scored, Worker
from verl_hier.rollout.policy import DEFAULT_POLICY
from verl_hier.rollout.roles import Roles
from verl_hier.rollout.sampler import roll_out
from verl_hier.rollout.task import RolloutSetup
from verl_hier.training.schedule import Phase

Array = NDArray[Any]
_LEAST = 1e-12


@dataclass(frozen=True)
class Sampled:
    """Which episodes each task has: those of a registered sampler.

    Attributes:
        spec: the sampler.
        options: built from its options.
        n: `actor_rollout_ref.rollout.n`.
    """

    spec: SamplerSpec
    options: Any
    n: int


class Numbers:
    """The renderer: a message is the number of a state, an action the number of states plus its own."""

    def __init__(self, states: int) -> None:
        self._states = states

    def render(
        self,
        tokens: list[int],
        history: list[dict[str, Any]],
        pending: list[dict[str, Any]],
        tools: Sequence[dict[str, Any]] = (),
    ) -> list[int]:
        """See `Renderer.render`."""
        return [*tokens, *(int(message["content"]) for message in pending)]

    def decode(self, tokens: list[int]) -> str:
        """See `Renderer.decode`."""
        return " ".join(str(token - self._states) for token in tokens)

    def ends(self, tokens: list[int], stop: Sequence[str] = ()) -> bool:
        """See `Renderer.ends`; every action is one token."""
        return bool(tokens)

    @property
    def stop_tokens(self) -> tuple[int, ...]:
        """See `Renderer.stop_tokens`."""
        return ()


class TablePolicy:
    """A table of probabilities as a policy server."""

    def __init__(self, policy: Array) -> None:
        self._states = len(policy)
        logs = np.log(np.maximum(policy, _LEAST))
        self._chances = policy.tolist()
        self._logs = logs.tolist()
        self._entropy = (-(policy * logs).sum(axis=1)).tolist()
        self._order = np.argsort(-policy, axis=1, kind="stable").tolist()

    async def generate(self, prompt: list[int], sampling: Sampling, conversation: str) -> Generation:
        """See `Policy.generate`."""
        state = prompt[-1]
        action = self._order[state][0]
        if sampling.temperature:
            action = random.Random(sampling.seed).choices(range(len(self._order[state])), self._chances[state])[0]
        top = [self._top(state, sampling.top_logprobs)] if sampling.top_logprobs else []
        return Generation(
            [self._states + action],
            [self._logs[state][action]],
            "completed",
            top_logprobs=top,
            entropy=[self._entropy[state]],
        )

    async def score(
        self, prompt: list[int], tokens: list[int], conversation: str, top: int = 0, temperature: float = 1.0
    ) -> Scored:
        """See `Policy.score`."""
        state = prompt[-1]
        logs = [self._logs[state][token - self._states] for token in tokens]
        return Scored(logs, [self._top(state, top) for _ in tokens])

    def _top(self, state: int, count: int) -> list[tuple[int, float]]:
        likeliest = [action for action in self._order[state] if self._chances[state][action] > 0][:count]
        return [(self._states + action, self._logs[state][action]) for action in likeliest]


@dataclass
class _Place:
    """Where an episode is in a world; see `EnvironmentHandle`."""

    worlds: Worlds
    seed: int
    state: int
    actions: tuple[int, ...] = ()

    async def step(self, action: str) -> StepResult:
        """Apply an action."""
        chosen = int(action)
        self.actions += (chosen,)
        reward = float(self.worlds.world.reward[self.state, chosen])
        chance = random.Random(f"{self.seed} {self.actions}")
        self.state = chance.choices(*self.worlds.after[self.state, chosen])[0]
        return self.worlds.answer(self.state, reward)

    async def fork(self) -> _Place:
        """An independent environment in the same state."""
        return _Place(self.worlds, self.seed, self.state, self.actions)

    async def close(self) -> None:
        """Nothing to free."""


class Worlds:
    """Where the environments of a world come from; see `Environments`."""

    forks: Fork = "native"

    def __init__(self, world: World) -> None:
        self.world = world
        self.after = {
            (state, action): (np.flatnonzero(row).tolist(), row[row > 0].tolist())
            for state, action in zip(*np.nonzero(world.legal), strict=True)
            for row in [world.moves[state, action]]
        }

    def answer(self, state: int, reward: float) -> StepResult:
        """What is seen of a state."""
        won, over = bool(self.world.goal[state]), bool(self.world.over[state])
        return StepResult(str(state), reward, done=over, anchor=str(state), info={"won": won})

    async def open(self, task: Mapping[str, Any], seed: int) -> tuple[_Place, StepResult]:
        """An episode at the start of a task."""
        state = int(task["start"])
        return _Place(self, seed, state), self.answer(state, 0.0)

    async def resume(
        self, task: Mapping[str, Any], seed: int, actions: Sequence[str], steps: Sequence[StepResult]
    ) -> _Place:
        """An episode after some actions."""
        place, _ = await self.open(task, seed)
        for action in actions:
            await place.step(action)
        return place


class Player(Worker):
    """Each role reads the states in which it acts, in a context of its own; for one that is left out, chance acts."""

    def __init__(self, world: World) -> None:
        self._world = world

    async def run(self, episode: EpisodeView) -> None:
        """See `Worker.run`."""
        world = self._world
        step = await episode.reset()
        contexts: dict[str, Any] = {}
        plan, segment = None, -1
        while not (step.done or step.truncated):
            state = int(step.text)
            role = world.roles[world.role[state]]
            segment += bool(world.begins[state]) or segment < 0
            if role in episode.stand_ins:
                step = await episode.act(str(episode.rng.choice(np.flatnonzero(world.legal[state]).tolist())))
                continue
            context = contexts.setdefault(role, episode.context(role)).observe(str(state))
            plans = bool(world.plans[state])
            turn = await episode.generate(context, segment=segment, plan=None if plans else plan)
            turn.mark(format=1.0, masks={"subgoal": [[0, 1]]} if plans else {"action": [[0, 1]]})
            plan = turn if plans else plan
            step = await episode.act(turn.text)


class Stage:
    """Where tasks of a world are played with a sampler."""

    def __init__(self, world: World, server: TablePolicy, shape: Sampled, seed: int) -> None:
        self._world, self._shape = world, shape
        self._setup = RolloutSetup(
            policies={DEFAULT_POLICY: server},
            renderer=Numbers(len(world.start)),
            environments=Worlds(world),
            limits=Limits(max_turns=world.horizon),
            seed=seed,
            vocabulary=world.legal.shape[1],
        )
        levels = {role: int(world.level[world.role == number].max()) for number, role in enumerate(world.roles)}
        self._roles = Roles("lab", levels)

    async def play(self, number: int, start: int, phase: Phase, step: int = 1) -> RolloutGraph:
        """Play the task of this number from a state."""
        request = Request(
            task={"instruction": self._world.name, "start": start},
            identity={"uid": str(number), "index": number, "data_source": self._world.name},
            n=self._shape.n,
            step=step,
            levels=phase.levels,
        )
        rollout = Rollout(request, self._setup, partial(Player, self._world), self._roles)
        return await roll_out(rollout, self._shape.spec.factory(self._shape.options))


def play_sampled(
    world: World, policy: Array, tasks: int, shape: Sampled, rng: np.random.Generator, phase: Phase, step: int = 1
) -> Batch:
    """Play a batch as `rollouts.play` does, with a sampler of the product.

    Args:
        world, policy, tasks: see `rollouts.play`.
        shape: the sampler.
        rng: gives the starts and the seed of the batch.
        phase: who learns.
        step: number of the trainer step.
    """
    starts = rng.choice(len(world.start), size=tasks, p=world.start)
    seed = int(rng.integers(2**31))
    stage = Stage(world, TablePolicy(policy), shape, seed)

    async def all_() -> list[RolloutGraph]:
        return [await stage.play(number, int(starts[number]), phase, step) for number in range(tasks)]

    graphs = asyncio.run(all_())
    table, turns = number_turns(graphs, [phase.learns] * tasks)
    kept = [
        node
        for graph, numbers in zip(graphs, turns, strict=True)
        for node, turn in zip(graph.nodes, numbers, strict=True)
        if turn >= 0
    ]
    state = np.array([int(node.anchor or 0) for node in kept], np.int64)
    action = np.array([node.action[0] - len(world.start) for node in kept], np.int64)
    add_knowledge(table, world, policy, state, action)
    return Batch(table, state, action, sum(len(graph.nodes) for graph in graphs))
