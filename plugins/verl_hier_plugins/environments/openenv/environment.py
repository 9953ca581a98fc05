"""The OpenEnv environment: one episode in one session of the server."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from verl_hier.environments.asynchronous import AsyncEnvironment
from verl_hier.environments.base import StepResult
from verl_hier.environments.reward_values import reward_of, truth_of
from verl_hier.environments.thoughts import without_thoughts
from verl_hier.http_clients import aiohttp_session
from verl_hier.text import read_json
from verl_hier_plugins.environments.openenv.options import OpenenvOptions
from verl_hier_plugins.environments.openenv.session import Refused, Session, action_field

NOT_SHOWN = ("metadata", "reward", "done")


class Shared:
    """What the episodes of a process share.

    Attributes:
        options: the options of the recipe.
        client: makes the connections.
    """

    def __init__(self, options: OpenenvOptions, client: aiohttp.ClientSession) -> None:
        self.options = options
        self.client = client
        self._field = options.action_field
        self._asking = asyncio.Lock()

    async def field(self) -> str:
        """The field of an action that takes a text, which the server is asked for once."""
        async with self._asking:
            self._field = self._field or await action_field(self.client, self.options.url)
            return self._field


class OpenenvEnvironment(AsyncEnvironment):
    """One episode; a rebuilt one repeats its actions in a new session."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._options = shared.options
        self._session: Session | None = None
        self._field = ""
        self._steps = 0
        self._total = 0.0
        self._anchor = ""
        self._done = False
        self._shown: dict[str, Any] = {}

    async def reset(self, task: Mapping[str, Any], seed: int) -> StepResult:
        """Begin a session and reset its instance by the task's `reset`; `seed` is the task's own."""
        self._field = await self._shared.field()
        self._session = await Session.begin(self._shared.client, self._options.url)
        return self._answer(await self._session.ask("reset", task.get("reset", {})), json.dumps(task, sort_keys=True))

    async def step(self, action: str) -> StepResult:
        """Send an action: a JSON object, or the text of its one field."""
        assert self._session is not None
        self._steps += 1
        if self._done:
            return self._refuse("The episode is over.")
        data = self._action(action)
        if data is None:
            return self._refuse("That is no action.")
        try:
            said = await self._session.ask("step", data)
        except Refused as error:
            return self._refuse(str(error))
        return self._answer(said, json.dumps(data, sort_keys=True))

    async def close(self) -> None:
        """End the session."""
        session, self._session = self._session, None
        if session is not None:
            await session.end()

    def _action(self, text: str) -> dict[str, Any] | None:
        visible = without_thoughts(text).strip()
        if visible.startswith("{"):
            try:
                said = read_json(visible)
            except ValueError:
                return None
            return said if isinstance(said, dict) else None
        return {self._field: visible} if visible else None

    def _answer(self, said: Mapping[str, Any], did: str) -> StepResult:
        observation = said.get("observation")
        self._shown = observation if isinstance(observation, dict) else {"observation": observation}
        given = said.get("reward")
        reward = 0.0 if given is None else reward_of("the `reward` of the OpenEnv server's answer", given)
        self._total += reward
        self._done = truth_of("the `done` of the OpenEnv server's answer", said.get("done"))
        kept = {name: value for name, value in self._shown.items() if name not in NOT_SHOWN}
        state: Any = [self._anchor, did, kept]
        if self._options.anchor_fields:
            state = [self._shown.get(name) for name in self._options.anchor_fields]
        self._anchor = hashlib.sha256(json.dumps([state, self._done], sort_keys=True).encode()).hexdigest()
        return self._result(self._text(kept), reward, valid=True)

    def _refuse(self, text: str) -> StepResult:
        return self._result(text, -self._options.invalid_penalty, valid=False)

    def _text(self, kept: Mapping[str, Any]) -> str:
        if self._options.show:
            return self._options.show.format_map(defaultdict(str, self._shown))
        texts = [value for value in kept.values() if isinstance(value, str)]
        return texts[0] if len(kept) == len(texts) == 1 else json.dumps(kept, ensure_ascii=False)

    def _result(self, text: str, reward: float, valid: bool) -> StepResult:
        won = self._done and self._total > self._options.won_above
        return StepResult(
            text=text,
            reward=reward,
            done=self._done,
            truncated=not self._done and self._steps >= self._options.max_steps,
            valid=valid,
            anchor=self._anchor,
            info={"won": won, "score": self._total, "observation": self._shown},
        )


@asynccontextmanager
async def service(options: OpenenvOptions) -> AsyncIterator[Callable[[], OpenenvEnvironment]]:
    """One HTTP client for all episodes of a process."""
    headers = {name: os.environ[variable] for name, variable in options.headers_env.items()}
    async with aiohttp_session(headers) as client:
        shared = Shared(options, client)
        yield lambda: OpenenvEnvironment(shared)
