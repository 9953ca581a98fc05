"""Which conversation a request continues: the one whose messages it begins with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from verl_hier_plugins.environments.gateway.aligning import Place, new_in, place_of
from verl_hier_plugins.environments.gateway.chance import DrawnNames
from verl_hier_plugins.environments.gateway.messages import Message, PolicyRequest, Toolbox
from verl_hier_plugins.environments.gateway.parents import SHORTEST_SUMMARY, Answer, Parent, parent_of
from verl_hier_plugins.environments.mcp.tools import HERMES

Begins = Literal["", "first", "again", "edited", "handed", "compacted"]
"""How a request stands to the conversations before it. Empty: it continues one. `first`: it begins one. `again`: it
asks what was asked before, for another answer. `edited`: its client has changed what was said, so a new context
begins. `handed` and `compacted`: it begins one that comes of another, see `parents`."""


MOST_QUOTES = 8
"""Answers that are looked for in what begins a context."""


@dataclass
class Conversation:
    """One context of the policy.

    Attributes:
        number: of the context in its episode.
        agent, toolbox, thread: of its requests.
        said: identities of its messages as they came last, the answers included.
        waits: whether its last request has no answer yet.
        came: its messages as they came first and whether the policy said them, the answers included.
        places: the first of those as they are compared.
        stops: strings at which its answers ended.
        realigned: whether its last request says in other words what was said.
        foreign: turns of the assistant that are new in its last request and that the policy did not write.
        parent: the answer that it comes of.
        last: its last answer.
        request: its last request.
        told: what its policy was told last of what its answers have to be.
    """

    number: int
    agent: str
    toolbox: str
    said: list[str] = field(default_factory=list)
    waits: bool = True
    came: list[tuple[Message, bool]] = field(default_factory=list)
    places: list[Place] = field(default_factory=list)
    stops: tuple[str, ...] = ()
    realigned: bool = False
    foreign: int = 0
    parent: Parent | None = None
    last: Answer | None = None
    request: PolicyRequest | None = None
    told: str = ""
    thread: str = ""


class Conversations:
    """The conversations of one episode.

    Attributes:
        idle: requests in a row that began a context without saying anything new: a program that asks the same again
            and again, or shortens a conversation for ever.
    """

    def __init__(self, actions: Literal["hermes", "plain"], reminders: Sequence[str] = ()) -> None:
        self._actions = actions
        self._reminders = reminders
        self._all: list[Conversation] = []
        self._answers: list[Answer] = []
        self._written: set[str] = set()
        self._heard: set[str] = set()
        self.idle = 0

    def take(self, request: PolicyRequest) -> tuple[Conversation, Begins, list[Message]]:
        """The conversation of a request, how it begins, and the messages that are new in it."""
        said = [message.same for message in request.messages]
        found = self._continued(said, request)
        if found is not None:
            known, new = found
            known.realigned = known.said != said[: len(known.said)]
            known.said, known.waits, known.stops = said, True, request.stop
            known.came += [(message, False) for message in new]
            known.request, known.foreign = request, self._foreign(new)
            if known.last is not None:
                known.last.open = False
            self.idle = 0
            return known, "", _with_demand(known, new)
        parent = parent_of(request, self._answers)
        begins = self._begins(said, request)
        if begins == "again":
            parent = None
        elif parent is not None:
            begins = "first" if parent.kind == "spawned" else parent.kind
        made = Conversation(len(self._all), request.agent, request.toolbox, said, stops=request.stop, parent=parent)
        made.request, made.thread, made.foreign = request, request.thread, self._foreign(request.messages)
        made.came = [(message, False) for message in request.messages]
        self._all.append(made)
        self.idle = 0 if self._says_something(self._compared(made)) else self.idle + 1
        return made, begins, _with_demand(made, _with_tools(request, self._actions))

    def answered(self, conversation: Conversation, reply: Message) -> None:
        """The policy has answered."""
        conversation.said = [*conversation.said, reply.same]
        conversation.came.append((reply, True))
        assert conversation.request is not None
        conversation.last = Answer(conversation.number, len(self._answers), conversation.request, reply)
        self._answers.append(conversation.last)
        self._written |= {reply.text.strip(), *reply.ids} - {""}
        conversation.waits = False

    def _foreign(self, messages: Sequence[Message]) -> int:
        return sum(message.role == "assistant" and not self._wrote(message) for message in messages)

    def _wrote(self, message: Message) -> bool:
        """Whether a message is an answer of the policy, in whichever conversation."""
        return message.role == "assistant" and not self._written.isdisjoint((message.text.strip(), *message.ids))

    def _says_something(self, places: Sequence[Place]) -> bool:
        """Whether a message is neither known from an earlier conversation, nor quotes the latest answers."""
        said = {place.text for place in places if place.role != "assistant"} - self._heard
        self._heard |= said
        quotes = [answer.reply.text.strip() for answer in self._answers[-MOST_QUOTES:]]
        return any(not any(len(quote) >= SHORTEST_SUMMARY and quote in text for quote in quotes) for text in said)

    def _places(self, messages: Sequence[Message]) -> list[Place]:
        return [place_of(message, self._reminders) for message in messages]

    def _compared(self, conversation: Conversation) -> list[Place]:
        """The messages of a conversation as they are compared, which is asked where they have come in other words."""
        places = conversation.places
        places += [place_of(message, self._reminders, own) for message, own in conversation.came[len(places) :]]
        return places

    def _continued(self, said: list[str], request: PolicyRequest) -> tuple[Conversation, list[Message]] | None:
        """The conversation that a request continues, and what is new in it."""
        own = [
            each
            for each in self._all
            if (each.agent, each.thread, each.toolbox) == (request.agent, request.thread, request.toolbox)
            and not each.waits
        ]
        same = [each for each in own if each.said == said[: len(each.said)] != said]
        if same:
            longest = max(same, key=lambda each: len(each.said))
            return longest, list(request.messages[len(longest.said) :])
        if any(message.role == "assistant" for message in request.messages):
            sent = self._places(request.messages)
            for each in sorted(own, key=lambda each: len(each.came), reverse=True):
                new = new_in(self._compared(each), sent, request.messages, each.stops)
                if new is not None:
                    return each, new
        return None

    def _begins(self, said: Sequence[str], request: PolicyRequest) -> Begins:
        earlier = [each for each in self._all if (each.agent, each.thread) == (request.agent, request.thread)]
        if any(each.said[: len(said)] == list(said) and each.toolbox == request.toolbox for each in earlier):
            return "again"
        # A system message alone is shared by conversations that have nothing to do with each other.
        opening = next((place for place, message in enumerate(request.messages) if message.role != "system"), 0)
        if any(each.said[: opening + 1] == list(said[: opening + 1]) for each in earlier):
            return "edited"
        answers = {message.same for message in request.messages if self._wrote(message)}
        return "edited" if any(answers.intersection(each.said) for each in earlier) else "first"


def _with_demand(conversation: Conversation, new: list[Message]) -> list[Message]:
    """The new messages of a conversation, the last of which says what the answer has to be, where that has changed."""
    assert conversation.request is not None
    told, conversation.told = conversation.told, conversation.request.demand.sentence
    if conversation.told in ("", told):
        return new
    return [*new[:-1], replace(new[-1], content=f"{new[-1].content}\n{conversation.told}".strip())]


def _with_tools(request: PolicyRequest, actions: Literal["hermes", "plain"]) -> list[Message]:
    """The messages of a new context; its tools are explained after the system messages that it begins with."""
    messages = list(request.messages)
    if not request.tools:
        return messages
    text = _explained(request.tools, actions)
    if messages[0].role == "system":
        first = messages[0]
        return [Message("system", f"{first.content}\n{text}".strip(), first.same), *messages[1:]]
    return [Message("system", text, ""), *messages]


def _explained(tools: Toolbox, actions: Literal["hermes", "plain"]) -> str:
    if actions == "plain":
        return f"You can say {', '.join(tool.plainly() for tool in tools.values())}."
    shown = "\n".join(tools.shown)
    call, _, _ = HERMES.partition("; when")
    return f"<tools>\n{shown}\n</tools>\n{call}."


def said_of(
    conversation: Conversation, begins: Begins, new: Sequence[Message], request: PolicyRequest, names: DrawnNames
) -> dict[str, Any]:
    """A request as the `info` of a step says it; see `verl_hier_plugins.workers.gateway`."""
    parent = conversation.parent
    return {
        "context": conversation.number,
        "begins": begins,
        "agent": request.agent,
        "messages": [[message.role, names.of_the_first(message.content)] for message in new],
        "stop": list(request.stop),
        "max_tokens": request.max_tokens,
        "logprobs": request.logprobs,
        "digest": request.settled_with(names),
        "realigned": not begins and conversation.realigned,
        "foreign": conversation.foreign,
        "parent": None if parent is None else [parent.kind, parent.context, parent.answer, parent.tool],
    }
