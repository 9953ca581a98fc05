"""The worker of the gateway: every conversation of an agent program is a context; docs/environments/gateway.md."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from verl_hier.environments.base import StepResult
from verl_hier.errors import RecipeError, did_you_mean
from verl_hier.graph.nodes import Node
from verl_hier.hookspecs import hookimpl
from verl_hier.host.constraints import CountOrZero
from verl_hier.host.specs import WorkerSpec
from verl_hier.rollout import Context, EpisodeView, Turn, Worker

MOST_SAID = 20
"""Names of agents that are said in a process; a program may make up a name for each request."""
DIED = "\0died"
"""Among what was said; no name of an agent."""
logger = logging.getLogger(__name__)
_said: set[str] = set()
CUT = "\x03"
"""Ends an action that its token limit has cut; see `verl_hier_plugins.environments.gateway.messages`."""
COUNTS = "\x04"
"""Begins the numbers of tokens of the prompt and of the turn, with which an action ends; see there."""
FULL = "\x05"
"""The action where a context has no room for an answer; see there."""
ROOM = 64
"""Tokens that a chat template adds to a message, at most."""
BYTES = 4
"""Of a character in UTF-8, each of which may be a token, at most."""
MOST_FULL = 16
"""Requests in a row that may have no room for an answer, before the episode is truncated."""


@dataclass(frozen=True)
class AgentOptions:
    """One agent of the program."""

    level: CountOrZero = 0
    """Its level, for schedules and estimators that go by levels; 0 is the highest."""
    begins: str = ""
    """Beginning of the first message of its conversations, by which it is known where no header names it."""
    depth: CountOrZero | None = None
    """How deep its conversations lie, by which it is known where no header names it: 0 for those that no other began, 1
    for those that a call of such a one began, and so on."""
    tool: str = ""
    """Name of the tool whose call begins its conversations, by which it is known where no header names it."""

    def fits(self, first: str, depth: int, tool: str) -> bool:
        """Whether a conversation is of this agent, by all that is said of its conversations."""
        said = bool(self.begins or self.tool) or self.depth is not None
        return said and first.startswith(self.begins) and self.depth in (None, depth) and self.tool in ("", tool)


def _default_agents() -> dict[str, AgentOptions]:
    return {"agent": AgentOptions()}


@dataclass(frozen=True)
class GatewayWorkerOptions:
    """Options of the `gateway` worker."""

    expert_speaks_for_all: ClassVar[bool] = True
    """The agents are known to the environment, whose expert answers as the one that asks."""

    agents: Mapping[str, AgentOptions] = field(default_factory=_default_agents)
    """The agents of the program by name, which are the roles. A request belongs to the one that its header `X-Agent`
    names, or else to the first whose `begins`, `depth` and `tool`, as far as they are given, fit its conversation, or
    else to the first. A header that names none of them is said once, counted as the failure `unnamed_agent`, and else
    read as none."""

    def __post_init__(self) -> None:
        if not self.agents:
            raise ValueError("agents has to name at least one agent")

    def levels(self) -> dict[str, int]:
        """The roles with their levels."""
        return {name: agent.level for name, agent in self.agents.items()}


@dataclass
class _Held:
    """A conversation: its context in the graph, how deep it lies, and the text of its last turn."""

    context: Context
    depth: int
    said: str = ""


class GatewayWorker(Worker):
    """See the module."""

    def __init__(self, options: GatewayWorkerOptions) -> None:
        self._options = options
        self._room = 0

    async def run(self, episode: EpisodeView) -> None:
        """See `Worker.run`."""
        held: dict[int, _Held] = {}
        turns: list[Turn] = []
        full = 0
        step = await episode.reset()
        while not (step.done or step.truncated):
            request = _request(step)
            number: int = request["context"]
            sources: tuple[Node, ...] = ()
            if number not in held:
                kind, parent, answer, tool = request.get("parent") or ("", -1, -1, "")
                depth = held[parent].depth + (kind == "spawned") if kind else 0
                sources = (turns[answer].node,) if kind else ()
                if kind == "spawned":
                    # A call that begins an agent asks for no knowledge of its own.
                    turns[answer].mark(access_calls=turns[answer].node.extra["access_calls"] - 1)
                if kind == "compacted":
                    _mark_summary(turns[answer])
                role = self._role(request, depth, tool)
                # One that a call began has a holder of its role for itself; one that goes on keeps its holder.
                agent = f"{role}.{number}" if kind == "spawned" else None
                if kind in ("handed", "compacted") and role == held[parent].context.role:
                    agent = held[parent].context.agent
                held[number] = _Held(episode.context(role, agent=agent), depth)
            context, depth = held[number].context, held[number].depth
            unnamed = bool(request["agent"]) and request["agent"] not in self._options.agents
            for role, content in request["messages"]:
                context.observe(content, role=role, sources=sources)
                sources = ()
            fits = await self._fits(episode, context, len(request["messages"]))
            full = 0 if fits else full + 1
            if not fits and full <= MOST_FULL:
                step = await episode.act(FULL)
                continue
            turn = await episode.generate(context, max_tokens=request["max_tokens"], stop=tuple(request["stop"]))
            turns.append(turn)
            turn.mark(
                edited=int(request["begins"] == "edited"),
                realigned=int(request.get("realigned", False)),
                foreign=int(request.get("foreign", 0)),
                compacted=int(request["begins"] == "compacted"),
                agent_depth=depth,
            )
            if request["begins"] == "edited":
                turn.mark(failure="history_edited")
            elif unnamed:
                turn.mark(failure="unnamed_agent")
            step = await episode.act(_action(turn, context, request.get("logprobs", False)))
            _mark_answer(turn, step, held[number])
        leads = [turn for turn in turns if turn.node.level == 0]
        if leads and step.info.get("ended") == "result":
            leads[-1].mark(answered=1)

    async def _fits(self, episode: EpisodeView, context: Context, messages: int) -> bool:
        """Whether a context has room for an answer; its prompt is tokenised only where that is not certain."""
        if context.length + BYTES * context.pending_characters + ROOM * messages < self._room:
            return True
        room = await episode.room(context)
        self._room = max(self._room, room)  # no more than what a context takes
        return room > 0

    def _role(self, request: Mapping[str, Any], depth: int, tool: str) -> str:
        agents, named = self._options.agents, request["agent"]
        if named in agents:
            return str(named)
        first = request["messages"][0][1]
        known = (name for name, agent in agents.items() if agent.fits(first, depth, tool))
        role = next(known, next(iter(agents)))
        if named and named not in _said and len(_said) < MOST_SAID:
            _said.add(named)
            logger.warning(
                "hier.worker.agents: a request is of the agent %r, by its header X-Agent, and the recipe names %s%s; "
                "its turns are those of %s.", named, ", ".join(agents), did_you_mean(named, agents), role,
            )  # fmt: skip
        return role


def _mark_summary(turn: Turn) -> None:
    """Note that a turn is the summary with which a conversation goes on.

    Some programs leave their latest turn out of the request for a summary, because they keep it word for word; that is
    no edit of what was said.
    """
    if turn.node.extra["edited"]:
        turn.mark(edited=0)
        del turn.node.extra["failure"]


def _mark_answer(turn: Turn, step: StepResult, conversation: _Held) -> None:
    """Fill the columns of a turn from what came of it."""
    calls = int(step.info.get("calls", 0))
    turn.mark(
        format=int(step.valid),
        access_calls=calls,
        answered=0,
        limit_failed=int(step.truncated or not turn.complete),
        repeat_failed=int(calls > 0 and turn.text == conversation.said),
    )
    conversation.said = turn.text
    if step.info.get("ended") == "died":
        turn.mark(failure="agent_died")
        _say_death(str(step.info.get("died", "")))


def _action(turn: Turn, context: Context, logprobs: bool) -> str:
    """A turn as the environment reads it: its text, whether it was cut, its numbers of tokens, and their log-probs."""
    cut, tokens = "" if turn.complete else CUT, turn.tokens
    added = f"{context.length - len(tokens)},{len(tokens)}"
    known = turn.logprobs if logprobs else []
    if known:
        texts = (context.decode([token]) for token in tokens)
        added += f",{json.dumps([*zip(texts, known, strict=True)])}"
    return f"{turn.text}{cut}{COUNTS}{added}"


def _say_death(line: str) -> None:
    """Say the first death of an agent in a process."""
    if DIED not in _said:
        _said.add(DIED)
        logger.warning(
            "hier.environment.crashes: an agent died after it was answered, and its result is scored as empty; its "
            "last line: %s", line,
        )  # fmt: skip


def _request(step: StepResult) -> Mapping[str, Any]:
    """The request that an observation is.

    Raises:
        RecipeError: when the environment shows none.
    """
    request = step.info.get("request")
    if not isinstance(request, Mapping):
        raise RecipeError(
            "hier.environment.name: the worker `gateway` answers requests of agent programs, which this environment "
            "does not show; choose the environment `gateway`, or another worker."
        )
    return request


@hookimpl
def hier_workers() -> WorkerSpec:
    return WorkerSpec(
        "gateway",
        GatewayWorker,
        GatewayWorkerOptions,
        summary="answers the requests of an agent program, each of its conversations in a context of its own",
        source="OpenAI's chat completions",
        doc="environments/gateway.md",
        active_roles=GatewayWorkerOptions.levels,
        provides=(
            *("edited", "realigned", "foreign", "compacted", "agent_depth", "format"),
            *("access_calls", "answered", "limit_failed", "repeat_failed"),
        ),
        needs_stop_strings=True,
        needs_info=("request",),
    )
