"""The verifiers environment: one episode of one of its environments, whose agents are the policy."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import verifiers.v1 as vf

from verl_hier.environments.asynchronous import AsyncEnvironment
from verl_hier.environments.base import StepResult
from verl_hier.errors import RecipeError
from verl_hier_plugins.environments.verifiers.options import VerifiersOptions
from verl_hier_plugins.environments.verifiers.seats import Request, Seat, Table, check_task
from verl_hier_plugins.environments.verifiers.tasks import places

ENV = "hier.environment.env"
LONGEST_REFUSAL = 300
OVER = "The episode is over."


class Shared:
    """What the episodes of a process share.

    Attributes:
        options: the options of the recipe.
        env: the environment of verifiers.
    """

    def __init__(self, options: VerifiersOptions, env: vf.Env) -> None:
        self.options = options
        self.env = env
        self._tasks: list[vf.Task] = []
        self._rest = iter(env.taskset)
        self._reading = asyncio.Lock()

    async def task(self, place: int, split: str) -> vf.Task:
        """The task at a place of the taskset, which is read as far as that.

        Raises:
            RecipeError: when there are fewer tasks.
        """
        async with self._reading:
            missing = place + 1 - len(self._tasks)
            if missing > 0:
                # A data set may have to be loaded, which must not hold up the other episodes.
                self._tasks += await asyncio.to_thread(lambda: list(itertools.islice(self._rest, missing)))
        if place < len(self._tasks):
            return self._tasks[place]
        option, there = ("pool" if split == "train" else "validation"), len(self._tasks)
        most = sum(each < there for each in places(split, there))
        raise RecipeError(
            f"hier.environment.{option}: the taskset has {there} tasks, of which {most} are in the split {split!r}; "
            f"lower it to {most}." + ("" if most else " No task is left for it, so take another taskset.")
        )


class VerifiersEnvironment(AsyncEnvironment):
    """One episode; a rebuilt one gives its answers again to another run of the environment."""

    def __init__(self, shared: Shared) -> None:
        self._shared, self._options = shared, shared.options
        self._table = Table()
        self._seats: dict[str, Seat] = {}
        self._playing: asyncio.Task[None] | None = None
        self._request: Request | None = None
        self._last = StepResult("")
        self._steps = 0
        self._cut = False

    async def reset(self, task: Mapping[str, Any], seed: int) -> StepResult:
        """Begin to run the environment, as far as its first request; verifiers has no seeds."""
        chosen = await self._shared.task(task["place"], task["split"])
        # The place tells tasks apart that read alike and are scored differently.
        self._last = StepResult("", anchor=str(task["place"]))
        self._playing = asyncio.create_task(self._play(chosen))
        return await self._next("")

    async def step(self, action: str) -> StepResult:
        """Give the answer to the request."""
        self._steps += 1
        if self._request is None:
            return replace(self._last, text=OVER, reward=0.0, valid=False)
        request, self._request = self._request, None
        request.reply.set_result(action)
        return await self._next(action)

    async def close(self) -> None:
        """End the run of the environment, wherever it is."""
        playing, self._playing = self._playing, None
        if playing is not None:
            playing.cancel()
            await asyncio.gather(playing, return_exceptions=True)

    async def _play(self, task: vf.Task) -> None:
        """One episode as verifiers runs it; the end, or what went wrong, comes behind the last request."""
        env = self._shared.env
        try:
            agents = vf.Agents(env.config, self._seat)
            await env.setup(agents)
            await env.run(task, agents)
            told = vf.TraceTask(type=type(task).__name__, data=task.data, key=task.key, hash=task.hash)
            episode = vf.Episode(env=vf.EnvInfo(id=env.config.env_id), task=told, traces=self._table.traces)
            await env.finalize(task, episode)
            self._table.requests.put_nowait(episode.traces)
        except Exception as error:
            self._table.requests.put_nowait(error)

    def _seat(self, name: str, config: vf.AgentConfig) -> Seat:
        self._seats[name] = Seat(name, config, self._table)
        return self._seats[name]

    async def _next(self, did: str) -> StepResult:
        """What the environment asks next, or the end."""
        found = await self._table.requests.get()
        while isinstance(found, Request) and self._steps >= self._options.max_steps:
            self._cut = True
            found.reply.set_result(None)
            found = await self._table.requests.get()
        if isinstance(found, Exception):
            raise found
        if isinstance(found, Request):
            self._request = found
            return self._answer(found.text, did, found.agent)
        return self._over(found, did)

    def _over(self, traces: list[vf.Trace], did: str) -> StepResult:
        """The end: each agent's reward is the sum of those of its traces, the task's and those of `finalize`."""
        rewards = {name: sum(trace.reward for trace in traces if trace.agent.name == name) for name in self._seats}
        scores = {
            f"{trace.agent.name}.{name}": score
            for trace in traces
            for name, score in (
                *((name, reward.score) for name, reward in trace.rewards.items() if reward is not None),
                *trace.metrics.items(),
            )
        }
        total = sum(rewards.values())
        won = not self._cut and total > self._options.won_above
        info = {"won": won, "score": total, "rewards": list(rewards.values()), "scores": scores}
        return self._answer(OVER, did, self._last.info["agent"], total, info)

    def _answer(
        self, text: str, did: str, agent: str, reward: float = 0.0, ended: Mapping[str, Any] | None = None
    ) -> StepResult:
        known = json.dumps([self._last.anchor, did, agent, text])
        names = list(self._seats)
        about = {"agent": agent, "player": names.index(agent), "players": len(names), "won": False, "score": 0.0}
        self._last = StepResult(
            text=text,
            reward=reward,
            done=ended is not None and not self._cut,
            truncated=ended is not None and self._cut,
            anchor=hashlib.blake2b(known.encode(), digest_size=12).hexdigest(),
            info={**about, **(ended or {})},
        )
        return self._last


@asynccontextmanager
async def service(options: VerifiersOptions) -> AsyncIterator[Callable[[], VerifiersEnvironment]]:
    """One environment of verifiers, which plays all episodes of a process.

    Raises:
        RecipeError: when there is no such environment, or it needs what is not here.
    """
    try:
        env = vf.load_environment(vf.resolve_env_config(dict(options.env)))
    except (ValueError, TypeError, AttributeError, ModuleNotFoundError) as error:
        said = " ".join(str(error).split())[:LONGEST_REFUSAL] or type(error).__name__
        raise RecipeError(f"{ENV}: verifiers does not make this environment: {said}") from error
    check_task(type(env.taskset).task_type())
    if env.taskset.toolsets(env.taskset.config):
        raise RecipeError(
            f"{ENV}: the taskset {env.config.taskset.id!r} has tools, which are MCP servers; the environment mcp plays "
            "those."
        )
    shared = Shared(options, env)
    await env.start()
    try:
        yield lambda: VerifiersEnvironment(shared)
    finally:
        await env.stop()
