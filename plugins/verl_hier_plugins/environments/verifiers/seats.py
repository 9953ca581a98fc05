"""What an environment of verifiers takes for its agents: a policy that is asked elsewhere, and a trace of what it said.

verifiers is the one that calls: its environment runs from beginning to end and asks an agent for its turns. Here an
agent is no program in a runtime with a client of a model; each of its turns is a request, which waits for our next
action.
This uses parts of verifiers that it does not document: `Trace`, `MessageNode`, and how an agent closes its trace.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import verifiers.v1 as vf
from verifiers.v1.dialects import parse_message
from verifiers.v1.session import call_hook, hook_boundary
from verifiers.v1.state import state_cls
from verifiers.v1.types import content_text

from verl_hier.environments.thoughts import split_thoughts
from verl_hier.errors import RecipeError


@dataclass
class Request:
    """A turn that an agent has to take.

    Attributes:
        agent: name of the agent.
        text: what it reads, as far as it has not read it before.
        reply: what it says; None where its episode is at its limit.
    """

    agent: str
    text: str
    reply: asyncio.Future[str | None]


@dataclass
class Table:
    """Where the agents of an episode meet us.

    Attributes:
        requests: turns that wait for an action, and at the end what the episode came to.
        traces: those of the agents that have finished, in this order.
    """

    requests: asyncio.Queue[Any] = field(default_factory=asyncio.Queue)
    traces: list[vf.Trace] = field(default_factory=list)

    async def ask(self, agent: str, text: str) -> str | None:
        """What the policy says for an agent."""
        request = Request(agent, text, asyncio.get_running_loop().create_future())
        self.requests.put_nowait(request)
        return await request.reply


class Conversation:
    """An agent's turns in one trace; in the place of `verifiers.v1.Interaction`."""

    def __init__(self, seat: Seat, task: vf.Task) -> None:
        self.trace: vf.Trace = vf.Trace(
            task=vf.TraceTask(type=type(task).__name__, data=task.data, key=task.key, hash=task.hash),
            state=state_cls(type(task))(),
            agent=vf.AgentInfo(config=seat.config, name=seat.name, trainable=True),
        )
        self._seat, self._task = seat, task
        self._stops = [fn for fn in task.hooks("stop") if hook_boundary(fn, allow_trace=True) is vf.Trace]
        self._begun = self._over = False

    async def turn(self, message: str | Sequence[Any] | None = None) -> vf.Segment:
        """Say something to the agent, or nothing where the prompt of its task does; and hear its answer."""
        if self._over:
            raise RuntimeError("the exchange is over (the run ended); read interaction.trace")
        prompted = not self._begun and self._task.data.prompt is not None
        if prompted == (message is not None):
            raise ValueError(
                "a first turn that the prompt of its task opens takes no message, and every other turn does"
            )
        news = [*([] if self._begun else self._opening()), *_messages(message)]
        self._begun = True
        limit = self._seat.config.max_turns
        if self.trace.stop_condition is None and limit is not None and self.trace.num_turns >= limit:
            self.trace.stop("max_turns")
        reply = None
        if self.trace.stop_condition is None:
            text = "\n\n".join(found for each in news if (found := content_text(each.content or "")))
            reply = await self._seat.table.ask(self._seat.name, text)
            if reply is None:
                self.trace.stop("max_turns")
        if reply is None:
            self._over = True
            return vf.Segment(messages=[], terminated=True)
        thought, said = split_thoughts(reply)
        answer = vf.AssistantMessage(content=said, reasoning_content=thought or None)
        self._add(news, sampled=False)
        self._add([answer], sampled=True)
        for stop in self._stops:
            if await call_hook(stop, {vf.Trace: self.trace}):
                self.trace.stop(stop.__name__)
        return vf.Segment(messages=[answer], root_reply=self.trace.root_reply)

    async def close(self, condition: str) -> None:
        """Finish the trace and let the task score it."""
        self.trace.stop(condition)
        await self._task.finalize(self.trace, None)
        await self._task.score(self.trace, None)
        self.trace.ok = True
        self._seat.table.traces.append(self.trace)

    def _opening(self) -> list[Any]:
        data = self._task.data
        system = [vf.SystemMessage(content=data.system_prompt)] if data.system_prompt else []
        return [*system, *_messages(data.prompt)]

    def _add(self, messages: Sequence[Any], sampled: bool) -> None:
        for message in messages:
            parent = len(self.trace.nodes) - 1
            node = vf.MessageNode(parent=parent if parent >= 0 else None, message=message, sampled=sampled)
            self.trace.nodes.append(node)


class Seat:
    """An agent of an environment; in the place of `verifiers.v1.Agent`.

    Attributes:
        name: what the environment calls it.
        config: its limits.
        table: where it asks.
        trainable: set by the environment; the policy speaks for no other agent.
    """

    def __init__(self, name: str, config: vf.AgentConfig, table: Table) -> None:
        self.name, self.config, self.table = name, config, table
        self.trainable = True

    @asynccontextmanager
    async def interaction(self, task: vf.Task, **borrowed: Any) -> AsyncIterator[Conversation]:
        """Several turns, with the caller as the user."""
        async with self._open(task, "user_closed") as conversation:
            yield conversation

    async def run(self, task: vf.Task, **borrowed: Any) -> vf.Trace:
        """One turn: there is no program that would go on with tools."""
        async with self._open(task, "agent_completed") as conversation:
            await conversation.turn()
        return conversation.trace

    @asynccontextmanager
    async def _open(self, task: vf.Task, condition: str) -> AsyncIterator[Conversation]:
        if not self.trainable:
            raise RecipeError(
                f"hier.environment.env: the agent {self.name!r} is not trainable, and the policy speaks for trainable "
                "agents alone; take an environment in which every agent is trained."
            )
        check_task(type(task), task)
        conversation = Conversation(self, task)
        await task.setup(conversation.trace, None)
        yield conversation
        await conversation.close(condition)


def check_task(kind: type[vf.Task], task: vf.Task | None = None) -> None:
    """Refuse what needs a runtime or tools, which are not here.

    Raises:
        RecipeError: when the kind of a task does.
    """
    why = ""
    if kind.NEEDS_CONTAINER:
        why = "needs a container"
    elif task is not None and kind.toolsets(task.config):
        why = "has tools, which are MCP servers; the environment mcp plays those"
    elif task is not None:
        judges = {judge.reward_name: judge.score for judge in task.plugged_judges()}
        rewards = {fn.__name__: fn for fn in task.hooks("reward")}
        needing = [name for name, fn in {**rewards, **judges}.items() if _needs_runtime(fn)]
        why = f"has the reward {needing[0]!r}, which needs a runtime" if needing else ""
    if why:
        raise RecipeError(f"hier.environment.env: the task {kind.__name__} {why}; take another taskset.")


def _needs_runtime(function: Any) -> bool:
    parameter = inspect.signature(function).parameters.get("runtime")
    return parameter is not None and parameter.default is inspect.Parameter.empty


def _messages(given: str | Sequence[Any] | None) -> list[Any]:
    """Messages of a turn or a prompt, which may be a text, messages, or messages as JSON."""
    if given is None:
        return []
    if isinstance(given, str):
        return [vf.UserMessage(content=given)]
    return [parse_message(each) if isinstance(each, dict) else each for each in given]
