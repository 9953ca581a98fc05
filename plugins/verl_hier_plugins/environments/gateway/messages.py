"""The one form in which requests of all dialects are held: messages, tools, and what limits the answer."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from verl_hier_plugins.environments.gateway.chance import DrawnNames, settled
from verl_hier_plugins.environments.gateway.demands import NOTHING, Demand
from verl_hier_plugins.environments.mcp.tools import CLOSE, OPEN, Tool

SECRET = "[secret]"
KEY = "verl-hier-"
"""Begins the key of every episode, so that none passes, whichever episode's it is."""
_KEY = re.compile(rf"{KEY}[\w-]{{32}}", re.ASCII)
_ENCODER = json.JSONEncoder(sort_keys=True, default=str)
_CALL_ID = re.compile(r"\bcall_\w{1,80}", re.ASCII)


class RefusedRequest(Exception):
    """A request that is not answered; its text is the sentence that the client reads.

    Attributes:
        status: of the HTTP response.
        too_long: whether a shorter conversation would be answered, so that a client may shorten it and go on.
    """

    def __init__(self, sentence: str, status: int = 400, too_long: bool = False) -> None:
        super().__init__(sentence)
        self.status = status
        self.too_long = too_long


@dataclass(frozen=True)
class Message:
    """One message of a conversation.

    Attributes:
        role: `system`, `user`, `assistant` or `tool`.
        content: its text as the policy reads it.
        same: what identifies it: equal for messages that a client may send back in another form.
        text: what it says beside its calls.
        ids: of its calls, or of the call that it is the result of; of an answer that comes back as text, those in it.
        arguments: name and texts of each of its calls; a conversation that a call begins quotes one of them.
    """

    role: str
    content: str
    same: str
    text: str = ""
    ids: tuple[str, ...] = ()
    arguments: tuple[tuple[str, tuple[str, ...]], ...] = ()

    @cached_property
    def settled(self) -> str:
        """Identity of what it says in every run of the program, where this one has drawn no names; see `chance`."""
        return self._settled(self.content)

    def settled_with(self, names: DrawnNames) -> str:
        """The same, in which the names that this run has drawn are those of the first run."""
        return self._settled(names.of_the_first(self.content))

    def _settled(self, content: str) -> str:
        text = settled(content)
        return self.same if text == self.content else digest([self.role, text])


class Toolbox(dict[str, Tool]):
    """The tools of a request by name."""

    @cached_property
    def shown(self) -> Sequence[str]:
        """As the policy reads them."""
        return [tool.shown() for tool in self.values()]

    @cached_property
    def identity(self) -> str:
        """Of what they are."""
        return digest(self.shown)

    @cached_property
    def characters(self) -> int:
        """With which they are explained."""
        return sum(map(len, self.shown))


@dataclass(frozen=True)
class PolicyRequest:
    """What a client asks.

    Attributes:
        messages: the whole conversation.
        tools: by name.
        agent: who asks, by the header; empty where it says nothing.
        thread, above: what the program calls the agent that asks, and the one that began it, by the headers of known
            programs (`threads`); empty where they say nothing.
        stop: strings that end the answer.
        max_tokens: limit of the answer, None for the recipe's.
        model: name that the answer repeats.
        stream: whether the answer is sent as events.
        stream_usage: whether the last of the events says the numbers of tokens.
        demand: what it wants of its answer beside its tools.
        choices: how many answers it wants.
        logprobs: whether it wants the log-probs of the answer's tokens.
        state: what its dialect keeps of it until it is answered.
    """

    messages: tuple[Message, ...]
    tools: Toolbox
    agent: str
    stop: tuple[str, ...]
    max_tokens: int | None
    model: str
    stream: bool = False
    stream_usage: bool = False
    demand: Demand = NOTHING
    choices: int = 1
    logprobs: bool = False
    state: Any = None
    thread: str = ""
    above: str = ""

    @cached_property
    def toolbox(self) -> str:
        """Identity of the tools."""
        return self.tools.identity

    @cached_property
    def digest(self) -> str:
        """Identity of the request."""
        return self._identity([message.same for message in self.messages])

    @cached_property
    def settled(self) -> str:
        """Identity of the request in every run of the program, where this one has drawn no names that are known."""
        said = [message.settled for message in self.messages]
        return self.digest if said == [message.same for message in self.messages] else self._identity(said)

    def settled_with(self, names: DrawnNames) -> str:
        """The same, in which the names that this run has drawn are those of the first run."""
        return self._identity([message.settled_with(names) for message in self.messages]) if names else self.settled

    def _identity(self, said: Sequence[str]) -> str:
        more = [each for each in (self.demand.sentence, self.choices, self.logprobs) if each not in ("", 1, False)]
        return digest([self.agent, self.toolbox, said, self.stop, self.max_tokens, *more])

    def with_state(self, state: Any) -> PolicyRequest:
        """The same request with what its dialect keeps of it."""
        return self._with(state=state)

    def in_thread(self, thread: str, above: str) -> PolicyRequest:
        """The same request of an agent that its program names."""
        return self._with(thread=thread, above=above) if thread or above else self

    def _with(self, **fields: Any) -> PolicyRequest:
        made = object.__new__(PolicyRequest)
        made.__dict__.update(self.__dict__, **fields)
        return made

    @cached_property
    def characters(self) -> int:
        """Of its messages and tools."""
        said = sum([len(message.content) for message in self.messages])
        return said + self.tools.characters + len(self.demand.sentence)


def message_of(role: str, text: str, calls: Sequence[tuple[str, str, Any]] = (), result_of: str = "") -> Message:
    """A message.

    Args:
        role: see `Message`.
        text: what it says beside its calls.
        calls: identity, name and arguments of each call of an assistant.
        result_of: identity of the call that a message of a tool answers.
    """
    if not calls:
        ids = tuple(_CALL_ID.findall(text)) if role == "assistant" else (result_of,) if result_of else ()
        return Message(role, text, digest([role, text.strip(), result_of]), text, ids)
    written = "".join(
        f"{OPEN}{json.dumps({'name': name, 'arguments': arguments}, ensure_ascii=False)}{CLOSE}"
        for _, name, arguments in calls
    )
    ids = tuple(identity for identity, _, _ in calls if identity)
    called = tuple((name, tuple(_texts(arguments))) for _, name, arguments in calls)
    return Message(role, f"{text}{written}", digest([role, text.strip(), calls]), text, ids, called)


def _texts(arguments: Any) -> Iterator[str]:
    """The texts in the arguments of a call."""
    if isinstance(arguments, str):
        yield arguments
    elif isinstance(arguments, Mapping | list):
        for each in arguments.values() if isinstance(arguments, Mapping) else arguments:
            yield from _texts(each)


def without_keys(value: Any) -> Any:
    """A text, or a value of JSON, in whose texts no key of an episode stands."""
    if isinstance(value, str):
        return _KEY.sub(SECRET, value) if KEY in value else value
    if isinstance(value, Mapping):
        return {without_keys(name): without_keys(each) for name, each in value.items()}
    return [without_keys(each) for each in value] if isinstance(value, list) else value


def digest(said: Sequence[Any]) -> str:
    """Identity of what can be written as JSON."""
    return hashlib.sha256(_ENCODER.encode(said).encode("utf-8", "replace")).hexdigest()
