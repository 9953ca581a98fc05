"""One agent's context: the messages it has seen, and the tokens that the server will see, grown but never rewritten."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from verl_hier.graph.nodes import Message, Node
from verl_hier.rollout.interfaces import CONTINUED, Renderer

if TYPE_CHECKING:
    from verl_hier.rollout.episode_view import Turn


@dataclass(frozen=True)
class ContextMessage:
    """A message of a context, and the turns whose words it carries: as nodes, since their numbers may still change."""

    role: str
    content: str
    turns: tuple[Node, ...] = ()

    def shown(self) -> dict[str, Any]:
        """As renderers want it."""
        return {"role": self.role, "content": self.content}

    def kept(self) -> Message:
        """As the graph keeps it, with the numbers that the turns have now."""
        return Message(self.role, self.content, [node.id for node in self.turns])


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
        self._history: list[ContextMessage] = []
        self._shown: list[dict[str, Any]] = []  # the history as renderers want it, made once
        self._pending: list[ContextMessage] = []

    def observe(self, content: str, role: str = "user", sources: Turn | Iterable[Turn] = ()) -> Context:
        """Add a message that the agent will see before it speaks next.

        Args:
            content: the words.
            role: of the chat: `system`, `user`, `tool`, …
            carries: turns whose words are among them, so that the graph knows who saw what; see `prompts.source_turns`.
        """
        self._pending.append(ContextMessage(role, content, _nodes(sources)))
        return self

    def extend(self, content: str, sources: Turn | Iterable[Turn] = ()) -> Context:
        """Put `content` into the message that the agent spoke last; its next turn goes on in that message.

        Nothing of the chat template comes between. The tokens are an observation like any other: read, never trained.

        Args:
            content: the words.
            carries: see `observe`.
        """
        if self.node is None:
            raise ValueError("the agent has not spoken yet, so there is no message to go on in")
        self._pending.append(ContextMessage(CONTINUED, content, _nodes(sources)))
        return self

    def prompt(self) -> tuple[list[int], int]:
        """The token ids for the next turn, and how many of them are the tokens of the turns before.

        The second number is 0 when the renderer could not continue the old tokens; the context then starts anew.
        """
        tokens = self._renderer.render(self._tokens, self._shown, [heard.shown() for heard in self._pending])
        kept = len(self._tokens)
        continues = kept > 0 and tokens[:kept] == self._tokens
        return tokens, kept if continues else 0

    def heard(self, continues: bool) -> list[ContextMessage]:
        """What the next turn's prompt adds.

        Args:
            continues: whether it continues the tokens of the turns before; when not, it says everything again.
        """
        return list(self._pending) if continues else [*self._history, *self._pending]

    def commit(self, prompt: list[int], action: list[int], node: Node) -> str:
        """Record that `node` spoke `action` after `prompt`; returns the decoded text."""
        text = self._renderer.decode(action)
        self._tokens = prompt + action
        if self._pending and self._pending[0].role == CONTINUED:
            last = self._history[-1]
            words = "".join([last.content, *(heard.content for heard in self._pending), text])
            turns = [*last.turns, *(turn for heard in self._pending for turn in heard.turns), node]
            self._history[-1] = replace(last, content=words, turns=tuple(turns))
            self._shown[-1] = self._history[-1].shown()
        else:
            new = [*self._pending, ContextMessage("assistant", text, (node,))]
            self._history += new
            self._shown += [heard.shown() for heard in new]
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


def _nodes(sources: Turn | Iterable[Turn]) -> tuple[Node, ...]:
    if not sources:
        return ()
    turns = sources if isinstance(sources, Iterable) else (sources,)
    return tuple({id(turn.node): turn.node for turn in turns}.values())
