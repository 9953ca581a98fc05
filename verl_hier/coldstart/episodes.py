"""One episode in this process: fast, because it starts no rollout server and no environment process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from verl_hier.environments.base import Environment, StepResult, last_word
from verl_hier.graph.nodes import RolloutGraph
from verl_hier.host.part import Part
from verl_hier.host.specs import Fork
from verl_hier.rollout import Limits, Policy, Renderer, Request, Rollout, Sampler, Sampling
from verl_hier.rollout.policy import DEFAULT_POLICY
from verl_hier.rollout.roles import Roles
from verl_hier.rollout.sampler import roll_out
from verl_hier.rollout.task import RolloutSetup
from verl_hier.rollout.transcript import Transcript


class LocalEnvironment:
    """One environment with the interface of `environments.pool`; it plays one episode at a time."""

    forks: Fork = "native"

    def __init__(self, environment: Environment) -> None:
        self.environment = environment
        self.last: StepResult | None = None
        self._word: bool | None = None

    async def open(self, task: Mapping[str, Any], seed: int) -> tuple[LocalEnvironment, StepResult]:
        """Start a task."""
        self.last = self.environment.reset(task, seed)
        self._word = last_word(None, self.last)
        return self, self.last

    async def resume(
        self, task: Mapping[str, Any], seed: int, actions: Sequence[str], steps: Sequence[StepResult]
    ) -> LocalEnvironment:
        """Start a task and repeat what was done in it."""
        await self.open(task, seed)
        for action in actions:
            await self.step(action)
        return self

    async def step(self, action: str) -> StepResult:
        """Apply an action."""
        self.last = self.environment.step(action)
        self._word = last_word(self._word, self.last)
        return self.last

    async def fork(self) -> LocalEnvironment:
        """The same environment: a rollout plays on a fork of the one that it opened, and here it has one episode."""
        return self

    async def close(self) -> None:
        """Nothing to do: the environment is used again for the next task."""

    @property
    def won(self) -> bool:
        """Whether the task is won; where the environment has said nothing of that, whether it has ended."""
        return bool(self.last and (self.last.done if self._word is None else self._word))


class _SingleEpisode(Sampler):
    async def sample(self, rollout: Rollout) -> None:
        """See `Sampler.sample`."""
        await rollout.start().run()


async def play(
    environment: LocalEnvironment,
    task: Mapping[str, Any],
    worker: Part,
    policy: Policy,
    renderer: Renderer,
    limits: Limits,
    number: int = 0,
    round_: int = 0,
    seed: int = 0,
    sampling: Sampling | None = None,
) -> tuple[RolloutGraph, Transcript]:
    """Play one episode of a task.

    Args:
        environment: where it is played.
        task: one of the environment's tasks.
        worker: drives the episode.
        policy: generates the turns.
        renderer: turns messages into the policy's tokens.
        limits: limits of the episode.
        number: index of the task; with `round_` and `seed` it names the random generators.
        round_: how often the task was played before.
        seed: root seed.
        sampling: how the policy is asked to sample.
    """
    request = Request(
        task=task,
        identity={"uid": str(number), "index": number, "instruction": str(task.get("instruction", ""))},
        n=1,
        step=round_,
        sampling=sampling or Sampling(),
    )
    setup = RolloutSetup({DEFAULT_POLICY: policy}, renderer, environment, limits, seed)
    spec, options = worker.spec, worker.options
    rollout = Rollout(request, setup, lambda: spec.factory(options), Roles.of(spec, options))
    graph = await roll_out(rollout, _SingleEpisode())
    return graph, Transcript.of(rollout.episodes[0])
