"""The context of one agent: its messages, and the tokens that the server sees, which grow but are never rewritten.

Whatever text a worker, an environment or an agent gives, halves of characters are replaced before it is tokenised (see
`verl_hier.text`); all else reaches the renderer as it came.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from verl_hier.errors import HierError, RolloutError, first_line
from verl_hier.graph.nodes import CONTINUED, Message, Node
from verl_hier.rollout.policy import DEFAULT_POLICY, Renderer
from verl_hier.text import repaired, without_halves

_OVERLAP = 16
"""Tokens that are decoded before a place, more than any character has."""


@dataclass(frozen=True)
class ContextMessage:
    """A message of a context, and the turns whose text it contains: as nodes, since their numbers may still change.

    `more` are further keys that chat templates read.
    """

    role: str
    content: str
    sources: tuple[Node, ...] = ()
    more: Mapping[str, Any] = field(default_factory=dict)

    def to_chat(self) -> dict[str, Any]:
        """The message as renderers read it."""
        return {"role": self.role, "content": self.content, **self.more}

    def to_message(self) -> Message:
        """The message as the graph stores it, with the present numbers of its sources."""
        return Message(self.role, self.content, [node.id for node in self.sources])


class Context:
    """A conversation of one agent with a policy.

    Attributes:
        role, agent, level: whose context it is; `agent` is the role's name unless several agents hold the role.
        policy: name of the policy that generates its turns.
        sampling: temperature, top_p and top_k of its turns where they are not the recipe's.
        node: its last turn, None before the first; the last piece of a turn of several pieces.
        tools: JSON schemas of the tools that its chat template shows. Not to be changed after its first turn.
        stop_tokens: token ids that end its turns, besides those of the model.
    """

    def __init__(
        self,
        renderer: Renderer,
        role: str,
        level: int,
        agent: str | None = None,
        policy: str = DEFAULT_POLICY,
        sampling: Mapping[str, float] | None = None,
    ) -> None:
        self.role = role
        self.agent = without_halves(agent or role)
        self.level = level
        self.policy = policy
        self.sampling = dict(sampling or {})
        self.node: Node | None = None
        self._tools: tuple[dict[str, Any], ...] = ()
        self.stop_tokens: tuple[int, ...] = ()
        self._renderer = renderer
        self._tokens: list[int] = []
        self._history: list[ContextMessage] = []
        self._chat: list[dict[str, Any]] = []  # the history as renderers read it, made once
        self._pending: list[ContextMessage] = []

    @property
    def tools(self) -> tuple[dict[str, Any], ...]:
        """See the class."""
        return self._tools

    @tools.setter
    def tools(self, schemas: Iterable[dict[str, Any]]) -> None:
        self._tools = tuple(repaired(tuple(schemas)))

    def observe(self, content: str, role: str = "user", sources: Iterable[Node] = (), **more: Any) -> Context:
        """Add a message that the agent sees before its next turn.

        Args:
            content: text of the message.
            role: chat role: `system`, `user`, `tool`, …
            sources: turns whose text it contains, so that the graph shows who saw what; see `prompts.source_nodes`.
            more: further keys of the message that chat templates read, such as `tool_call_id`.
        """
        self._pending.append(ContextMessage(role, without_halves(content), _distinct(sources), repaired(more)))
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
        self._pending.append(ContextMessage(CONTINUED, without_halves(content), _distinct(sources)))
        return self

    def read_as(self, content: str, **more: Any) -> Context:
        """Say how the chat template is to read the turn that was generated last, such as with its `tool_calls` apart.

        The tokens of the turn stay as they are.

        Args:
            content: text of the turn without what `more` contains.
            more: further keys of the message.
        """
        if self.node is None:
            raise ValueError("the agent has not taken a turn yet")
        self._chat[-1] = {"role": "assistant", "content": without_halves(content), **repaired(more)}
        return self

    @property
    def length(self) -> int:
        """Tokens of its last turn's prompt and of that turn; 0 before the first."""
        return len(self._tokens)

    @property
    def pending_characters(self) -> int:
        """Characters of the messages that the next prompt adds."""
        return sum(len(message.content) for message in self._pending)

    def prompt(self) -> tuple[list[int], int]:
        """The token ids for the next turn, and how many of them are the tokens of the turns before.

        The second number is 0 when the renderer could not continue the old tokens; the context then starts anew.
        """
        pending = [message.to_chat() for message in self._pending]
        tokens = rendered(self._renderer, self.agent, self._tokens, self._chat, pending, self._tools)
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

        places = _Places(self._renderer, action)
        return [places.tokens_until(end) for end in characters]


def rendered(
    renderer: Renderer,
    agent: str,
    tokens: list[int],
    history: list[dict[str, Any]],
    pending: list[dict[str, Any]],
    tools: Sequence[dict[str, Any]] = (),
) -> list[int]:
    """See `Renderer.render`; `agent` is whose messages these are, for the error.

    Raises:
        RolloutError: when the tokenizer or the chat template raises, which is no fault of who wrote a message.
    """
    try:
        return renderer.render(tokens, history, pending, tools)
    except HierError:
        raise
    except Exception as error:
        last = pending[-1]["content"] if pending else ""
        raise RolloutError(
            f"the model's tokenizer or chat template cannot read the messages of agent {agent!r}: "
            f"{type(error).__name__}: {first_line(error)}; the last message begins with {last!r:.60}; see "
            "`actor_rollout_ref.model.path`, `hier.rollout.template` and `data.apply_chat_template_kwargs`."
        ) from error


class _Places:
    """Finds how many tokens of an action decode to so many characters, without decoding all of them for each question.

    What a token adds depends on a few tokens before it. So lengths are counted from a token that is known, and a few
    before it are decoded along with what follows: as many as hold a sign that is no space, which decoding strips.
    """

    def __init__(self, renderer: Renderer, action: list[int]) -> None:
        self._decode = renderer.decode
        self._action = action
        self._begin()

    def _begin(self) -> None:
        self._known = self._reached = self._first = self._before = 0

    def _length(self, count: int) -> int:
        """Characters of the first `count` tokens, for a count beyond the known one."""
        return self._reached - self._before + len(self._decode(self._action[self._first : count]))

    def _know(self, count: int) -> None:
        """Count from another token on."""
        reached, overlap = self._length(count), _OVERLAP
        while not (piece := self._decode(self._action[max(count - overlap, 0) : count])) and overlap < count:
            overlap *= 2
        self._known, self._reached = count, reached
        self._first, self._before = max(count - overlap, 0), len(piece)

    def tokens_until(self, end: int) -> int:
        """The fewest tokens that decode to `end` characters."""
        if end < self._reached:
            self._begin()
        last = len(self._action)
        while True:
            width = _OVERLAP
            while self._known + width < last and self._length(self._known + width) < end:
                width *= 2
            if width <= 4 * _OVERLAP:
                break
            self._know(self._known + width // 2)
        place = bisect_left(range(last), end, self._known, min(self._known + width, last), key=self._length)
        if place > self._known:
            self._know(place)
        return place


def _distinct(nodes: Iterable[Node]) -> tuple[Node, ...]:
    return tuple({id(node): node for node in nodes}.values())
