"""The requests of one episode, between the endpoint that receives them and the environment that answers them."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from typing import Any

from verl_hier_plugins.environments.gateway.answers import PolicyAnswer
from verl_hier_plugins.environments.gateway.dialects import Dialect
from verl_hier_plugins.environments.gateway.heard import Heard
from verl_hier_plugins.environments.gateway.messages import KEY, PolicyRequest, RefusedRequest
from verl_hier_plugins.environments.gateway.options import GatewayOptions

MOST_OPEN = 1024
"""Requests of one episode whose connections are held; further ones are refused, so that they cannot fill the memory."""
TOKENS_PER_CHARACTER = 0.3
"""Where no answer has shown it yet."""


class Asked:
    """A request of an agent that waits for the policy.

    Attributes:
        request: the request.
        answer: the answer, once there is one.
        left: whether its client has gone; the policy is not asked for one that does not come back.
    """

    def __init__(self, request: PolicyRequest) -> None:
        self.request = request
        self.answer: asyncio.Future[PolicyAnswer] = asyncio.get_running_loop().create_future()
        self.left = False


class Inbox:
    """The requests of one episode.

    Attributes:
        key: the secret that its agent shows.
        waiting: requests that the policy has not been asked yet, in the order of their arrival.
        changed: set when one arrives.
        fault: how the wire has failed its agent since the last answer, in a sentence; empty where it has not.
        limited: whether the fault is that a conversation was longer than the recipe allows.
        heard: what its clients have sent.
        reading: held while a request is read.
    """

    def __init__(self, options: GatewayOptions) -> None:
        self.key = f"{KEY}{secrets.token_urlsafe(24)}"
        self.waiting: list[Asked] = []
        self.changed = asyncio.Event()
        self.fault = ""
        self.limited = False
        self.heard = Heard()
        self.reading = asyncio.Lock()
        self._options = options
        self._places = asyncio.Semaphore(options.most_at_once)
        self._unheard: dict[tuple[str, int], Asked] = {}
        self._unanswered: set[Asked] = set()
        self._open = 0
        self._closed = False
        self._read = (0, 0)

    def read(self, dialect: Dialect, body: Any, agent: str) -> PolicyRequest:
        """A request that may be asked, from JSON; one at a time.

        Raises:
            RefusedRequest: when it is none, or the episode is over.
        """
        if self._closed:
            raise _over()
        return dialect.read(body, agent, self._options.request_characters, self.heard)

    async def ask(self, request: PolicyRequest) -> Sequence[PolicyAnswer]:
        """Wait for the answer to a request; it is held while as many as may wait side by side do.

        A client that went away and asks the same once more, as clients do after a time-out, gets the answer to its
        first request.

        Raises:
            RefusedRequest: when the episode is over or ends meanwhile, or more are held than can be.
        """
        if self._open >= MOST_OPEN:
            raise RefusedRequest(f"{self._open} requests of this agent wait already.", 503)
        self._open += 1
        try:
            async with self._places:
                several = (self._answer(request, choice) for choice in range(request.choices))
                answers = [await self._answer(request, 0)] if request.choices == 1 else await asyncio.gather(*several)
            self.fault, self.limited = "", False
            characters, tokens = self._read
            self._read = characters + request.characters, tokens + answers[0].usage.prompt
            return answers
        except asyncio.CancelledError:
            if self._open == 1:  # else the answer to another one may have ended the agent
                self.fault = "its client went away before it was answered"
            raise
        except RefusedRequest as error:
            self.failed(error)
            raise
        finally:
            self._open -= 1

    def unread(self, request: PolicyRequest, answers: Sequence[PolicyAnswer]) -> None:
        """A client has gone before the answer was sent to its end."""
        for choice, answer in enumerate(answers):
            asked = Asked(request)
            asked.answer.set_result(answer)
            self._unheard[request.digest, choice] = asked
        if not self._open:
            self.fault = "its client went away before it had read the answer"

    def failed(self, refused: RefusedRequest) -> None:
        """Note that a request was refused, of which the agent may die."""
        self.fault, self.limited = str(refused), refused.too_long

    def tokens_of(self, request: PolicyRequest) -> int:
        """About how many tokens a request has, by those of the requests that were answered."""
        characters, tokens = self._read
        return max(1, round(request.characters * (tokens / characters if characters else TOKENS_PER_CHARACTER)))

    def close(self) -> None:
        """Refuse what waits, so that a program that the agent has left behind keeps no connection, and what comes."""
        self._closed = True
        for asked in [*self._unanswered]:
            if not asked.answer.done():
                asked.answer.set_exception(_over())
                asked.answer.exception()  # its client may have gone
        self.waiting.clear()

    async def _answer(self, request: PolicyRequest, choice: int) -> PolicyAnswer:
        if self._closed:
            raise _over()
        asked = self._unheard.pop((request.digest, choice), None)
        if asked is None:
            asked = Asked(request)
            self.waiting.append(asked)
        self._unanswered.add(asked)
        asked.left = False
        self.changed.set()
        try:
            # The answer outlives this client, which may come back for it.
            return await asyncio.shield(asked.answer)
        except asyncio.CancelledError:
            asked.left = True
            self._unheard[request.digest, choice] = asked
            raise
        finally:
            if asked.answer.done():
                self._unanswered.discard(asked)


def _over() -> RefusedRequest:
    return RefusedRequest("the episode of this key is over.", 410)
