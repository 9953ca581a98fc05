"""The interface of an environment that waits for others: servers, tools, other people's programs.

Its methods are coroutines. Those of many episodes run side by side in one process (`environments.async_child`), so
that a world that answers in a second keeps hundreds of episodes busy. What the episodes of a process share, such as an
HTTP client, belongs to the service, which makes the environments:

    @asynccontextmanager
    async def service(options):
        async with aiohttp_session() as client:  # of verl_hier.http_clients
            yield lambda: Library(client, options)

    SPEC = EnvironmentSpec("library", service, Options, asynchronous=True, ...)

Behind the pool nobody knows whether an environment is synchronous; `environments.blocking` makes it one for a single
player.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from typing import Any

from verl_hier.environments.base import StepResult
from verl_hier.errors import RecipeError
from verl_hier.host.constraints import Count, CountOrZero, Positive


class Unavailable(Exception):
    """The world did not take a call, which surely had no effect: the server refused it, was not there, or was full.

    Raise it from `reset`, `step`, `fork` or `restore` and the pool makes the call again, at most `AsyncOptions.retries`
    times; then the episode is lost.
    """


class SessionLost(Exception):
    """The session of an episode has ended, and nothing is left of what the episode did in it, this call included.

    Raise it from `step` or `fork` and the pool restores the episode in a new session and makes the call again; when
    that session is lost too, the episode is lost.
    """


class WrongServer(RecipeError):
    """What a server says is not what is expected of the one that the recipe names.

    Raise it from `reset` or `step`. Where no such call of the pool was answered before, the recipe names another server
    than it means, and the run ends with this sentence. Later the server has failed, and the episode is lost.
    """


class AsyncEnvironment(ABC):
    """One episode of an environment whose answers take long.

    A call that exceeds its time limit, or is not needed any more, is cancelled: the method sees an
    `asyncio.CancelledError`, `close` is called, and the instance is never used again. No method may block its process,
    not even for a moment: what blocks belongs into `asyncio.to_thread`.
    """

    @abstractmethod
    async def reset(self, task: Mapping[str, Any], seed: int) -> StepResult:
        """Start `task` (a JSON-able dict made by the spec's `tasks`); called once, before everything else."""

    @abstractmethod
    async def step(self, action: str) -> StepResult:
        """Apply one action. Nonsensical actions, and errors of tools, are answered with `valid=False`."""

    async def fork(self) -> AsyncEnvironment | None:
        """An independent copy in the same state, or None when only `restore` can make one."""
        return None

    async def restore(
        self, task: Mapping[str, Any], seed: int, actions: Sequence[str], steps: Sequence[StepResult]
    ) -> Sequence[StepResult] | None:
        """Bring a new instance to where an episode was; called once, in place of `reset`.

        Args:
            task, seed: those of the reset.
            actions: what the episode did.
            steps: what it was answered, first by the reset; one more than `actions`.

        Returns:
            What the world answered now, which the pool compares with `steps`. None where the world was not asked again,
            because its answers depend on the actions alone.
        """
        return [await self.reset(task, seed), *[await self.step(action) for action in actions]]

    async def close(self) -> None:  # noqa: B027 - optional
        """Free the resources of the instance. Called once, also after a call that was cancelled or raised."""


Service = Callable[[Any], AbstractAsyncContextManager[Callable[[], AsyncEnvironment]]]
"""`service(options)` is entered once a process and gives the function that makes the environments."""


@dataclass(frozen=True)
class AsyncOptions:
    """How asynchronous environments are called. `time_limit_s` limits their steps and forks."""

    open_s: Positive = 120.0
    """Wall seconds that a reset may take."""
    close_s: Positive = 10.0
    """Wall seconds that closing an environment may take."""
    calls_in_flight: Count = 1024
    """Calls that the run has in flight at once, in equal shares over its rollout workers
    (`actor_rollout_ref.rollout.agent.num_workers`). Others wait, which counts towards no time limit."""
    retries: CountOrZero = 2
    """How often a call is made again that surely had no effect, such as one that a server refused."""

    def shared(self, workers: int) -> AsyncOptions:
        """The options of one of so many rollout workers: its share of the calls in flight, at least one."""
        return replace(self, calls_in_flight=max(1, self.calls_in_flight // workers))
