"""Which conversation a request continues: the one whose messages it begins with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from verl_hier_plugins.environments.gateway.messages import ChatRequest, Message
from verl_hier_plugins.environments.mcp.tools import HERMES, Tool

Begins = Literal["", "first", "again", "edited"]
"""How a request stands to the conversations before it. Empty: it continues one. `first`: it begins one. `again`: it
asks what was asked before, for another answer. `edited`: its client has changed what was said, so a new context
begins."""


@dataclass
class Conversation:
    """One context of the policy.

    Attributes:
        number: of the context in its episode.
        agent, toolbox: of its requests.
        said: identities of its messages, the answers included.
        waits: whether its last request has no answer yet.
    """

    number: int
    agent: str
    toolbox: str
    said: list[str] = field(default_factory=list)
    waits: bool = True


class Conversations:
    """The conversations of one episode."""

    def __init__(self, actions: Literal["hermes", "plain"]) -> None:
        self._actions = actions
        self._all: list[Conversation] = []

    def take(self, request: ChatRequest) -> tuple[Conversation, Begins, list[Message]]:
        """The conversation of a request, how it begins, and the messages that are new in it."""
        said = [message.same for message in request.messages]
        own = [each for each in self._all if (each.agent, each.toolbox) == (request.agent, request.toolbox)]
        known = [each for each in own if not each.waits and each.said == said[: len(each.said)] != said]
        if known:
            longest = max(known, key=lambda each: len(each.said))
            new = list(request.messages[len(longest.said) :])
            longest.said, longest.waits = said, True
            return longest, "", new
        begins = self._begins(said, request)
        made = Conversation(len(self._all), request.agent, request.toolbox, said)
        self._all.append(made)
        return made, begins, _with_tools(request, self._actions)

    @staticmethod
    def answered(conversation: Conversation, reply: Message) -> None:
        """The policy has answered."""
        conversation.said = [*conversation.said, reply.same]
        conversation.waits = False

    def _begins(self, said: Sequence[str], request: ChatRequest) -> Begins:
        earlier = [each for each in self._all if each.agent == request.agent]
        if any(each.said[: len(said)] == list(said) and each.toolbox == request.toolbox for each in earlier):
            return "again"
        # A system message alone is shared by conversations that have nothing to do with each other.
        opening = next((place for place, message in enumerate(request.messages) if message.role != "system"), 0)
        if any(each.said[: opening + 1] == list(said[: opening + 1]) for each in earlier):
            return "edited"
        answers = {message.same for message in request.messages if message.role == "assistant"}
        return "edited" if any(answers.intersection(each.said) for each in earlier) else "first"


def _with_tools(request: ChatRequest, actions: Literal["hermes", "plain"]) -> list[Message]:
    """The messages of a new context; its tools are explained after the system messages that it begins with."""
    messages = list(request.messages)
    if not request.tools:
        return messages
    text = _explained(request.tools, actions)
    if messages[0].role == "system":
        first = messages[0]
        return [Message("system", f"{first.content}\n{text}".strip(), first.same), *messages[1:]]
    return [Message("system", text, ""), *messages]


def _explained(tools: Mapping[str, Tool], actions: Literal["hermes", "plain"]) -> str:
    if actions == "plain":
        return f"You can say {', '.join(tool.plainly() for tool in tools.values())}."
    shown = "\n".join(tool.shown() for tool in tools.values())
    call, _, _ = HERMES.partition("; when")
    return f"<tools>\n{shown}\n</tools>\n{call}."


def said_of(conversation: Conversation, begins: Begins, new: Sequence[Message], request: ChatRequest) -> dict[str, Any]:
    """A request as the `info` of a step says it; see `verl_hier_plugins.workers.gateway`."""
    return {
        "context": conversation.number,
        "begins": begins,
        "agent": request.agent,
        "messages": [[message.role, message.content] for message in new],
        "stop": list(request.stop),
        "max_tokens": request.max_tokens,
        "digest": request.digest,
    }
