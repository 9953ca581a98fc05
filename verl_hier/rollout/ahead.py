"""Turns of several contexts that the policy generates side by side, though their episode takes them in order.

The worker says which contexts come next. With the first of their turns the requests of all of them are sent, and each
answer waits until its turn comes. So the path, the seeds and the environment's calls are those of turns that were
generated one after the other; an answer counts only if its turn asks exactly what was asked ahead.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine, Iterable
from dataclasses import dataclass
from typing import Any

from verl_hier.rollout.context import Context
from verl_hier.rollout.policy import Generation, Sampling


@dataclass(frozen=True)
class Expected:
    """A turn that a worker has announced: in which context, with how many tokens at most, and what ends it."""

    context: Context
    max_tokens: int
    stop: tuple[str, ...]


@dataclass(frozen=True)
class _Begun:
    policy: str
    prompt: list[int]
    sampling: Sampling
    answer: asyncio.Task[Generation]


class Ahead:
    """The announced turns of one episode, and the requests that were sent for them.

    Attributes:
        unused: requests whose answers were for nothing.
    """

    def __init__(self) -> None:
        self.unused = 0
        self._expected: deque[Expected] = deque()
        self._begun: list[_Begun] = []

    def expect(self, turns: Iterable[Expected]) -> None:
        """Replace what was announced before."""
        self._expected = deque(turns)

    def reach(self, context: Context) -> None:
        """A turn in `context` begins: it is no longer ahead; another context than the announced one ends the list."""
        if self._expected and self._expected.popleft().context is not context:
            self._expected.clear()

    def take_expected(self) -> list[Expected]:
        """The announced turns after the present one, which are then no longer announced."""
        turns = list(self._expected)
        self._expected.clear()
        return turns

    def begin(
        self, policy: str, prompt: list[int], sampling: Sampling, request: Coroutine[Any, Any, Generation]
    ) -> None:
        """Send a request."""
        self._begun.append(_Begun(policy, prompt, sampling, asyncio.ensure_future(request)))

    def take(self, policy: str, prompt: list[int], sampling: Sampling) -> asyncio.Task[Generation] | None:
        """The answer to the oldest request, if it is exactly this one; else None, and what was sent is given up."""
        if not self._begun:
            return None
        begun = self._begun[0]
        if (begun.policy, begun.prompt, begun.sampling) == (policy, prompt, sampling):
            return self._begun.pop(0).answer
        self.give_up()
        return None

    def give_up(self) -> None:
        """Cancel every request whose turn has not come."""
        begun, self._begun = self._begun, []
        self.unused += len(begun)
        for each in begun:
            each.answer.cancel()
            # The error of a request that nobody waits for any more is nobody's.
            each.answer.add_done_callback(lambda answer: answer.cancelled() or answer.exception())
