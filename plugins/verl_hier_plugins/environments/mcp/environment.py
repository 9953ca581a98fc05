"""The MCP environment: a task is done by calling the tools of a server, and ends with an answer."""

from __future__ import annotations

import asyncio
import copy
import hashlib
import json
import random
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from verl_hier.environments.asynchronous import AsyncEnvironment, SessionLost, Unavailable, WrongServer
from verl_hier.environments.base import StepResult
from verl_hier.environments.scoring import MATCHES
from verl_hier.environments.wire import cut
from verl_hier.errors import RecipeError
from verl_hier_plugins.environments.mcp.options import McpOptions
from verl_hier_plugins.environments.mcp.session import Connection, Said, connector
from verl_hier_plugins.environments.mcp.tools import HERMES, Call, Problem, Tool, parse

KEY = "[state]"
"""What stands in answers for the hidden argument that keeps episodes apart."""


class Connections:
    """The connections of a process: one for each episode, or one for all where the server keeps nothing by session."""

    def __init__(self, options: McpOptions) -> None:
        self.options = options
        self._enter = connector(options)
        self._open: set[Connection] = set()
        self._shared: Connection | None = None
        self._sharing = asyncio.Lock()
        self._tools: dict[str, Tool] | None = None

    async def take(self) -> Connection:
        """A connection for an episode.

        Raises:
            Unavailable: when as many sessions are open as may be, or the server takes no more.
        """
        if self.options.state == "session":
            return await self._fresh()
        async with self._sharing:
            if self._shared is None or self._shared.lost:
                if self._shared is not None:
                    await self._end(self._shared)
                self._shared = await self._fresh()
            return self._shared

    async def give_back(self, connection: Connection) -> None:
        """End the session of an episode; a shared connection stays."""
        if self.options.state == "session":
            await self._end(connection)

    async def tools(self, connection: Connection) -> dict[str, Tool]:
        """The tools that the policy sees, which are asked for once a process.

        Raises:
            WrongServer: when a hidden argument or tool is in none of them.
        """
        if self._tools is None:
            found = await connection.tools()
            lost = [name for name in self.options.hidden if name not in found]
            if lost:
                raise WrongServer(f"hier.environment.hidden: the server has no tool {lost[0]!r}; it has {[*found]}.")
            key = self.options.state_key
            if key and not any(key in tool.schema.get("properties", {}) for tool in found.values()):
                raise WrongServer(f"hier.environment.state_key: no tool of the server has an argument {key!r}.")
            self._tools = found
        return self._tools

    async def close(self) -> None:
        """End all sessions."""
        await asyncio.gather(*(self._end(connection) for connection in [*self._open]))

    async def _fresh(self) -> Connection:
        if len(self._open) >= self.options.most_sessions:
            most = f"{len(self._open)} sessions are open"
            raise Unavailable(f"{most}; raise hier.environment.most_sessions, or ask for fewer episodes at once")
        connection = Connection(self._enter)
        self._open.add(connection)
        try:
            return await connection.open()
        except BaseException:
            self._open.discard(connection)
            raise

    async def _end(self, connection: Connection) -> None:
        try:
            await connection.close()
        finally:
            self._open.discard(connection)


class McpEnvironment(AsyncEnvironment):
    """One task.

    Attributes:
        task: the task.
        history: calls so far, each with its answer.
    """

    def __init__(self, connections: Connections) -> None:
        self.task: Mapping[str, Any] = {}
        self.history: tuple[tuple[Call, Said], ...] = ()
        self._connections = connections
        self._options = connections.options
        self._connection: Connection | None = None
        self._known: dict[str, Tool] = {}
        self._tools: dict[str, Tool] = {}
        self._key = ""
        self._steps = 0
        self._won: bool | None = None

    async def reset(self, task: Mapping[str, Any], seed: int) -> StepResult:
        """Open a session and make the calls that a task begins with. `seed` has no effect."""
        await self._begin(task)
        return self._answer(self._help() if self._options.observation == "full" else "")

    async def step(self, action: str) -> StepResult:
        """Make the calls of a turn, one after the other, or take its answer."""
        if self._won is not None:
            return self._answer("The task is over.", valid=False)
        self._steps += 1
        parsed = parse(action, self._tools, self._options.actions == "plain")
        if isinstance(parsed, Problem):
            return self._answer(parsed.text, valid=False)
        if isinstance(parsed, str):
            self._won = await self._is_done(parsed)
            return self._answer("", reward=float(self._won))
        said = [await self._call(call) for call in parsed[: self._options.most_calls]]
        return self._told(parsed, said)

    async def fork(self) -> McpEnvironment | None:
        """A copy where the server keeps nothing of an episode; elsewhere only `restore` can make one."""
        return copy.copy(self) if self._options.state == "none" else None

    async def restore(
        self, task: Mapping[str, Any], seed: int, actions: Sequence[str], steps: Sequence[StepResult]
    ) -> Sequence[StepResult] | None:
        """Make the calls again in a new session, without those that the server calls read-only.

        Where answers depend on the calls alone, none is made.

        Raises:
            RecipeError: for a destructive call that must not be repeated.
        """
        recorded = self._options.state == "none"
        await self._begin(task, opening=not recorded)
        again = [self._answer(self._help() if self._options.observation == "full" else "")]
        for action, step in zip(actions, steps[1:], strict=True):
            parsed = parse(action, self._tools, self._options.actions == "plain")
            if not isinstance(parsed, list):
                again.append(await self.step(action))
                continue
            self._steps += 1
            calls = parsed[: self._options.most_calls]
            known = [Said(**said) for said in step.info["answers"]]
            said = [
                was if recorded or self._tools[call.name].read_only else await self._repeat(call)
                for call, was in zip(calls, known, strict=True)
            ]
            again.append(self._told(calls, said))
        return None if recorded else again

    async def close(self) -> None:
        """End the session."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await self._connections.give_back(connection)

    def expert(self, rng: random.Random, skip_stage: float = 0.0, remember: bool = True) -> Any:
        """A scripted expert for the tasks of the sample server; see `verl_hier.environments.expert`."""
        from verl_hier_plugins.environments.mcp.house import HouseExpert

        return HouseExpert(self, rng, skip_stage, remember)

    def vocabulary(self) -> Iterable[str]:
        """The words of the sample server."""
        from verl_hier_plugins.environments.mcp.house import words

        return words(self._options)

    async def _begin(self, task: Mapping[str, Any], opening: bool = True) -> None:
        self.task = task
        self._connection = await self._connections.take()
        self._known = await self._connections.tools(self._connection)
        key = self._options.state_key
        seen = {name: tool for name, tool in self._known.items() if name not in self._options.hidden}
        self._tools = {name: tool.without(key) if key else tool for name, tool in seen.items()}
        self._key = uuid.uuid4().hex if key else ""
        for call in task.get("opening", ()) if opening else ():
            said = await self._ask(Call(call["name"], call.get("arguments", {})))
            if said.error:
                raise WrongServer(f"hier.environment.data_path: the opening call {call} is an error: {said.text:.200}.")

    async def _call(self, call: Call) -> Said:
        return await self._ask(call)

    async def _repeat(self, call: Call) -> Said:
        if self._tools[call.name].destructive and not self._options.repeat_destructive:
            raise RecipeError(
                f"hier.environment.repeat_destructive: the episode called {call.name}, which its server calls "
                "destructive, so it cannot be rebuilt or forked; allow it, or take a sampler that does not branch."
            )
        return await self._ask(call)

    async def _ask(self, call: Call) -> Said:
        """Call the server, with the hidden argument."""
        assert self._connection is not None
        hidden = self._options.state_key
        takes = hidden and hidden in self._known[call.name].schema.get("properties", {}) if hidden else False
        arguments = {**call.arguments, hidden: self._key} if takes else call.arguments
        try:
            said = await self._connection.call(call.name, arguments)
        except SessionLost as error:
            if self._options.state == "none":
                self._connection = await self._connections.take()
                raise Unavailable(str(error)) from error
            raise
        return Said(said.text.replace(self._key, KEY), said.error) if self._key else said

    async def _is_done(self, answer: str) -> bool:
        """Whether the answer is one of the task's, and the call that checks the task says what it should."""
        answers, check = self.task.get("answers"), self.task.get("check")
        if answers and not await asyncio.to_thread(MATCHES[self._options.scorer], answer, answers):
            return False
        if check:
            said = await self._ask(Call(check["name"], check.get("arguments", {})))
            return not said.error and check["expect"] in said.text
        return bool(answers)

    def _told(self, calls: Sequence[Call], said: Sequence[Said]) -> StepResult:
        self.history = (*self.history, *zip(calls, said, strict=False))
        return self._answer(
            "\n".join(cut(each.text, self._options.max_characters) for each in said),
            valid=not all(each.error for each in said),
            said=said,
        )

    def _help(self) -> str:
        if self._options.actions == "plain":
            forms = ", ".join(f"`{tool.plainly()}`" for tool in self._tools.values())
            return f"You can say {forms}, and `answer <text>` to end."
        return "\n".join(("<tools>", *(tool.shown() for tool in self._tools.values()), "</tools>", HERMES))

    def _anchor(self) -> str:
        """What the agent did to the world, in order, and what it has learned from it, in any."""
        did, learned = [], set()
        for call, said in self.history:
            if said.error:
                continue
            note = json.dumps([call.name, call.arguments, said.text], sort_keys=True)
            learned.add(note) if self._tools[call.name].read_only else did.append(note)
        known = json.dumps([self.task.get("instruction"), did, sorted(learned), self._won])
        return hashlib.sha256(known.encode()).hexdigest()

    def _answer(self, text: str, reward: float = 0.0, valid: bool = True, said: Sequence[Said] = ()) -> StepResult:
        done = self._won is not None
        return StepResult(
            text=text,
            reward=reward if valid else reward - self._options.invalid_penalty,
            done=done,
            truncated=not done and self._steps >= self._options.max_steps,
            valid=valid,
            anchor=self._anchor(),
            info={
                "won": bool(self._won),
                "score": float(bool(self._won)),
                "answers": [{"text": each.text, "error": each.error} for each in said],
                **({} if self._steps else {"commands": self._help()}),
                **({"used_tool": bool(self.history)} if done else {}),
            },
        )


@asynccontextmanager
async def service(options: McpOptions) -> AsyncIterator[Callable[[], McpEnvironment]]:
    """The connections of a process."""
    connections = Connections(options)
    try:
        yield lambda: McpEnvironment(connections)
    finally:
        await connections.close()
