"""One agent's context: the messages it has seen, and the tokens that the server will see, grown but never rewritten."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

from verl_hier.rollout.interfaces import CONTINUED, Renderer
from verl_hier.trajectory.graph import Node


class Context:
    """A conversation of one agent with the policy.

    Attributes:
        role, agent, level: whose context it is; `agent` is the role's name unless several agents hold the role.
        node: the turn that spoke last in it, None before the first; the last piece of a turn of several.
    """

    def __init__(self, renderer: Renderer, role: str, level: int, agent: str | None = None) -> None:
        self.role = role
        self.agent = agent or role
        self.level = level
        self.node: Node | None = None
        self._renderer = renderer
        self._tokens: list[int] = []
        self._history: list[dict[str, Any]] = []
        self._pending: list[dict[str, Any]] = []

    def observe(self, content: str, role: str = "user") -> Context:
        """Add a message that the agent will see before it speaks next."""
        self._pending.append({"role": role, "content": content})
        return self

    def extend(self, content: str) -> Context:
        """Put `content` into the message that the agent spoke last; its next turn goes on in that message.

        Nothing of the chat template comes between. The tokens are an observation like any other: read, never trained.
        """
        if self.node is None:
            raise ValueError("the agent has not spoken yet, so there is no message to go on in")
        self._pending.append({"role": CONTINUED, "content": content})
        return self

    def prompt(self) -> tuple[list[int], int]:
        """The token ids for the next turn, and how many of them are the tokens of the turns before.

        The second number is 0 when the renderer could not continue the old tokens; the context then starts anew.
        """
        tokens = self._renderer.render(self._tokens, self._history, self._pending)
        kept = len(self._tokens)
        continues = kept > 0 and tokens[:kept] == self._tokens
        return tokens, kept if continues else 0

    def commit(self, prompt: list[int], action: list[int], node: Node) -> str:
        """Record that `node` spoke `action` after `prompt`; returns the decoded text."""
        text = self._renderer.decode(action)
        self._tokens = prompt + action
        if self._pending and self._pending[0]["role"] == CONTINUED:
            self._history[-1]["content"] += "".join(message["content"] for message in self._pending) + text
        else:
            self._history += [*self._pending, {"role": "assistant", "content": text}]
        self._pending = []
        self.node = node
        return text

    def ended(self, action: list[int]) -> bool:
        """Whether an action ends with the model's own end of a message, behind which it cannot go on."""
        return self._renderer.ends(action)

    def tokens_until(self, action: list[int], characters: Sequence[int]) -> list[int]:
        """For each number of characters of the decoded action, the fewest of its tokens that say as many.

        Half of a character counts as said, so places should stand behind plain ones, as the ends of tags do.
        """

        def said(count: int) -> int:
            return len(self._renderer.decode(action[:count]))

        return [bisect_left(range(len(action)), end, key=said) for end in characters]
