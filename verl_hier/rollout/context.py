"""The context of one agent: its messages, and the tokens that the server sees, which grow but are never rewritten."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from verl_hier.graph.nodes import CONTINUED, Message, Node
from verl_hier.rollout.policy import DEFAULT_POLICY, Renderer

_OVERLAP = 16
"""Tokens that are decoded before a place, more than any character has."""


@dataclass(frozen=True)
class ContextMessage:
    """A message of a context, and the turns whose text it contains: as nodes, since their numbers may still change."""

    role: str
    content: str
    sources: tuple[Node, ...] = ()

    def to_chat(self) -> dict[str, Any]:
        """The message as renderers read it."""
        return {"role": self.role, "content": self.content}

    def to_message(self) -> Message:
        """The message as the graph stores it, with the present numbers of its sources."""
        return Message(self.role, self.content, [node.id for node in self.sources])


class Context:
    """A conversation of one agent with a policy.

    Attributes:
        role, agent, level: whose context it is; `agent` is the role's name unless several agents hold the role.
        policy: name of the policy that generates its turns.
        node: its last turn, None before the first; the last piece of a turn of several pieces.
    """

    def __init__(
        self, renderer: Renderer, role: str, level: int, agent: str | None = None, policy: str = DEFAULT_POLICY
    ) -> None:
        self.role = role
        self.agent = agent or role
        self.level = level
        self.policy = policy
        self.node: Node | None = None
        self._renderer = renderer
        self._tokens: list[int] = []
        self._history: list[ContextMessage] = []
        self._chat: list[dict[str, Any]] = []  # the history as renderers read it, made once
        self._pending: list[ContextMessage] = []

    def observe(self, content: str, role: str = "user", sources: Iterable[Node] = ()) -> Context:
        """Add a message that the agent sees before its next turn.

        Args:
            content: text of the message.
            role: chat role: `system`, `user`, `tool`, …
            sources: turns whose text it contains, so that the graph shows who saw what; see `prompts.source_nodes`.
        """
        self._pending.append(ContextMessage(role, content, _distinct(sources)))
        return self

    def extend(self, content: str, sources: Iterable[Node] = ()) -> Context:
        """Append `content` to the message that the agent generated last; its next turn continues that message.

        No token of the chat template comes in between. The tokens of `content` are an observation like any other:
        they are not trained.

        Args:
            content: text to append.
            sources: see `observe`.
        """
        if self.node is None:
            raise ValueError("the agent has not taken a turn yet, so there is no message to extend")
        self._pending.append(ContextMessage(CONTINUED, content, _distinct(sources)))
        return self

    @property
    def pending_characters(self) -> int:
        """Characters of the messages that the next prompt adds."""
        return sum(len(message.content) for message in self._pending)

    def prompt(self) -> tuple[list[int], int]:
        """The token ids for the next turn, and how many of them are the tokens of the turns before.

        The second number is 0 when the renderer could not continue the old tokens; the context then starts anew.
        """
        tokens = self._renderer.render(self._tokens, self._chat, [message.to_chat() for message in self._pending])
        kept = len(self._tokens)
        continues = kept > 0 and tokens[:kept] == self._tokens
        return tokens, kept if continues else 0

    def new_messages(self, continues: bool) -> list[ContextMessage]:
        """The messages that the next prompt adds.

        Args:
            continues: whether the prompt continues the tokens of the turns before; if not, it repeats all messages.
        """
        return list(self._pending) if continues else [*self._history, *self._pending]

    def decode(self, action: list[int]) -> str:
        """The text of an action."""
        return self._renderer.decode(action)

    def append_turn(self, prompt: list[int], action: list[int], node: Node, text: str | None = None) -> str:
        """Add the turn of `node`, which generated `action` after `prompt`; returns the decoded `text`."""
        if text is None:
            text = self.decode(action)
        self._tokens = prompt + action
        if self._pending and self._pending[0].role == CONTINUED:
            last = self._history[-1]
            content = "".join([last.content, *(message.content for message in self._pending), text])
            sources = [*last.sources, *(source for message in self._pending for source in message.sources), node]
            self._history[-1] = replace(last, content=content, sources=tuple(sources))
            self._chat[-1] = self._history[-1].to_chat()
        else:
            new = [*self._pending, ContextMessage("assistant", text, (node,))]
            self._history += new
            self._chat += [message.to_chat() for message in new]
        self._pending = []
        self.node = node
        return text

    def ended(self, action: list[int]) -> bool:
        """Whether an action ends with the model's own end of a message, which cannot be continued."""
        return self._renderer.ends(action)

    def tokens_until(self, action: list[int], characters: Sequence[int]) -> list[int]:
        """For each number of characters of the decoded action, the fewest of its tokens that decode to as many.

        Places are in ascending order. An incomplete character counts as one and space at the end as none, so places
        should follow plain characters, as the ends of tags do.
        """

        found: list[int] = []
        known = reached = 0  # the tokens up to the last place, and the characters that they decode to
        for end in characters:
            if end < reached:
                known = reached = 0
            # Decoding depends on a few tokens before, and decoding all of them for each place would be quadratic.
            first = max(known - _OVERLAP, 0)
            before = len(self._renderer.decode(action[first:known])) if known else 0
            offset = reached - before

            def decoded(count: int, first: int = first, offset: int = offset) -> int:
                return offset + len(self._renderer.decode(action[first:count]))

            width = _OVERLAP
            while known + width < len(action) and decoded(known + width) < end:
                width *= 2
            place = bisect_left(range(len(action)), end, known, min(known + width, len(action)), key=decoded)
            known, reached = place, decoded(place)
            found.append(place)
        return found


def _distinct(nodes: Iterable[Node]) -> tuple[Node, ...]:
    return tuple({id(node): node for node in nodes}.values())
