"""Any environment behind the synchronous interface, for one player: checks, experts, playing by hand."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar

from verl_hier.environments.asynchronous import AsyncEnvironment
from verl_hier.environments.base import Environment, StepResult
from verl_hier.environments.expert import Expert, OffersExpert, OffersVocabulary
from verl_hier.environments.mask import Mask
from verl_hier.environments.surroundings import secrets_of
from verl_hier.host.specs import EnvironmentSpec

T = TypeVar("T")
Entering = AbstractAsyncContextManager[Callable[[], AsyncEnvironment]]


def build(spec: EnvironmentSpec, options: Any) -> Environment:
    """An environment in this process, synchronous whatever its spec says.

    Raises:
        RecipeError: when a package that it needs is missing, or its options do not fit.
    """
    made = spec.factory(options)
    if not spec.asynchronous:
        return made
    environment = BlockingEnvironment(made, Mask.of_variables(secrets_of(spec, options)))
    return BlockingExpert.of(environment) if environment.offers_expert else environment


class BlockingEnvironment(Environment):
    """An asynchronous environment whose coroutines run in the event loop of another thread; no call is limited."""

    def __init__(self, service: Entering, mask: Mask = Mask(())) -> None:  # noqa: B008 - it does not change
        """
        Args:
            service: what an `asynchronous.Service` returned; left when this environment and its forks are closed.
            mask: hides secrets in what the environment answers.
        """
        self._mask = mask
        self._loop = _ServiceLoop(service)
        self._environment: AsyncEnvironment | None = None

    def reset(self, task: Mapping[str, Any], seed: int) -> StepResult:
        """Start a task in a fresh environment."""
        self._close_inner()
        self._environment = self._loop.run(self._loop.make())
        return self._mask.step(self._loop.run(self._inner.reset(task, seed)))

    def step(self, action: str) -> StepResult:
        """Apply an action."""
        return self._mask.step(self._loop.run(self._inner.step(action)))

    def fork(self) -> BlockingEnvironment | None:
        """A copy in the same service, or None when only a replay can make one."""
        made = self._loop.run(self._inner.fork())
        if made is None:
            return None
        copy = object.__new__(type(self))
        copy._loop, copy._environment, copy._mask = self._loop.shared(), made, self._mask
        return copy

    def close(self) -> None:
        """Close the environment, and with the last one its service."""
        self._close_inner()
        self._loop.release()

    @property
    def offers_expert(self) -> bool:
        """Whether the asynchronous environments have a scripted expert."""
        return isinstance(self._loop.run(self._loop.make()), OffersExpert)

    @property
    def _inner(self) -> AsyncEnvironment:
        assert self._environment is not None, "reset it first"
        return self._environment

    def _close_inner(self) -> None:
        environment, self._environment = self._environment, None
        if environment is not None:
            self._loop.run(environment.close())


class BlockingExpert(BlockingEnvironment):
    """One whose asynchronous environments have an expert; see `environments.expert`."""

    @classmethod
    def of(cls, environment: BlockingEnvironment) -> BlockingExpert:
        """The same environment."""
        found = object.__new__(cls)
        vars(found).update(vars(environment))
        return found

    def expert(self, rng: random.Random, skip_stage: float = 0.0, remember: bool = True) -> Expert:
        """The expert of the episode, which looks at the environment and asks nobody."""
        inner = self._inner
        assert isinstance(inner, OffersExpert)
        return inner.expert(rng, skip_stage, remember)

    def vocabulary(self) -> Iterable[str]:
        """The words of the environment, where it lists them."""
        inner = self._loop.run(self._loop.make())
        return inner.vocabulary() if isinstance(inner, OffersVocabulary) else ()


class _ServiceLoop:
    """An event loop in a thread that enters a service, and leaves it when its last user is gone."""

    def __init__(self, service: Entering) -> None:
        self._users = 1
        self._over = asyncio.Event()
        self._entered: Future[Callable[[], AsyncEnvironment]] = Future()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="environment", daemon=True)
        self._thread.start()
        self._serving = asyncio.run_coroutine_threadsafe(self._serve(service), self._loop)
        try:
            self._make = self._entered.result()
        except BaseException:
            self._end()
            raise

    async def make(self) -> AsyncEnvironment:
        return self._make()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def shared(self) -> _ServiceLoop:
        self._users += 1
        return self

    def release(self) -> None:
        self._users -= 1
        if not self._users:
            self._end()

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        try:
            self._serving.result()
            self.run(self._loop.shutdown_default_executor())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    async def _serve(self, service: Entering) -> None:
        """Enter and leave in one task, which some services demand."""
        try:
            async with service as make:
                self._entered.set_result(make)
                await self._over.wait()
        except BaseException as error:
            if self._entered.done():
                raise
            self._entered.set_exception(error)
