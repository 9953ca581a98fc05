"""What the rollout needs of a model: a policy that generates tokens, and a renderer between messages and tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

DEFAULT_POLICY = "default"
"""Name of the policy of contexts that name no other one."""
_SAVED = "saved:"


def policy_of(assigned: Mapping[str, str], role: str, named: str = DEFAULT_POLICY) -> str:
    """The policy of a role.

    Args:
        assigned: role to policy, as the recipe says; roles that are not among them take `DEFAULT_POLICY`.
        role: whose turn it is.
        named: the policy that the worker names itself, which wins unless it is `DEFAULT_POLICY`.
    """
    return assigned.get(role, DEFAULT_POLICY) if named == DEFAULT_POLICY else named


@dataclass(frozen=True)
class Sampling:
    """How one turn is sampled.

    Attributes:
        temperature, top_p, top_k: as in verl's rollout configuration; temperature 0 is greedy.
        max_tokens: limit of generated tokens.
        seed: seed of the request, None to let the server choose.
        stop: strings that end the turn.
        stop_tokens: token ids that end the turn, besides those of the model.
        top_logprobs: number of log-probs to ask for at each position (0: only the sampled token's).
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    max_tokens: int = 512
    seed: int | None = None
    stop: tuple[str, ...] = ()
    top_logprobs: int = 0
    stop_tokens: tuple[int, ...] = ()


@dataclass(frozen=True)
class Generation:
    """The policy server's answer to a request of L sampled tokens.

    Attributes:
        token_ids: (L,) sampled tokens, the end token included.
        logprobs: (L,) log p of each under the sampling temperature; empty when the server returns none.
        stop_reason: why the server stopped, in its own words. Whether the turn was cut is not asked of it: its tokens
            say so.
        version: lowest and highest weight version that took part.
        cached_tokens: prompt tokens that were read from the server's prefix cache.
        top_logprobs: (L,) lists of (token id, log p), when they were asked for and are available.
        entropy: (L,) entropy in nats, when the answer comes with it, as a recorded one does; else empty.
        counted_tokens: generated tokens as the server counts them, where `token_ids` are no tokens of a model but
            stand for whole messages; else None.
    """

    token_ids: list[int]
    logprobs: list[float]
    stop_reason: str | None = None
    version: tuple[int, int] = (0, 0)
    cached_tokens: int = 0
    top_logprobs: list[list[tuple[int, float]]] = field(default_factory=list)
    entropy: list[float] = field(default_factory=list)
    counted_tokens: int | None = None


@dataclass(frozen=True)
class Scored:
    """The policy's log-probs of L tokens that were given to it.

    Attributes:
        logprobs: (L,) log p of each token at the temperature that was asked for.
        top: (L,) lists of the likeliest (token id, log p), likeliest first.
        version: lowest and highest weight version that took part.
    """

    logprobs: list[float]
    top: list[list[tuple[int, float]]] = field(default_factory=list)
    version: tuple[int, int] = (0, 0)


class Policy(Protocol):
    """A client of a policy server, with tokens as input and output."""

    async def generate(self, prompt: list[int], sampling: Sampling, conversation: str) -> Generation:
        """Sample one turn.

        Args:
            prompt: the exact token ids.
            sampling: how to sample.
            conversation: requests of one conversation stay on one replica, where their prefix is cached.

        Raises:
            RolloutError: when the server is gone.
        """

    async def score(
        self, prompt: list[int], tokens: list[int], conversation: str, top: int = 0, temperature: float = 1.0
    ) -> Scored:
        """Read `tokens` after `prompt` without sampling.

        Args:
            prompt: token ids, at least one.
            tokens: token ids to score.
            conversation: see `generate`.
            top: number of the likeliest tokens to return for each position.
            temperature: of the log-probs; above 0.

        Raises:
            RolloutError: when the server is gone, or returns no log-probs of prompts, or not at this temperature.
        """


def saved(path: str) -> str:
    """Name of the policy that has the weights of a saved model, such as a past checkpoint."""
    return f"{_SAVED}{path}"


def saved_in(name: str) -> str | None:
    """The folder of a saved model by the name of its policy; None for any other policy."""
    return name.removeprefix(_SAVED) if name.startswith(_SAVED) else None


class Policies(Mapping[str, Policy]):
    """The policies that a run has from its start, and others, which are opened when a context first names them.

    Args:
        known: by name, `DEFAULT_POLICY` among them.
        opens: the policy of another name; None where there is none of that name.
    """

    def __init__(self, known: Mapping[str, Policy], opens: Callable[[str], Policy | None]) -> None:
        self._known = known
        self._opens = opens

    def __getitem__(self, name: str) -> Policy:
        policy = self._known[name] if name in self._known else self._opens(name)
        if policy is None:
            raise KeyError(name)
        return policy

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)


class Renderer(Protocol):
    """Turns messages into tokens; it never tokenises sampled tokens again."""

    def render(
        self,
        tokens: list[int],
        history: list[dict[str, Any]],
        pending: list[dict[str, Any]],
        tools: Sequence[dict[str, Any]] = (),
    ) -> list[int]:
        """The prompt after `pending` messages were added.

        Args:
            tokens: the context so far: prompts and actions, verbatim; empty for a new context.
            history: the messages that `tokens` stand for.
            pending: messages to add, each `{"role", "content"}`. Content of role `CONTINUED` (see `graph.nodes`) goes
                into the message that the agent generated last: it follows `tokens` directly, and the agent continues
                that message. Messages may have further keys, such as `tool_calls` and `tool_call_id`.
            tools: JSON schemas of the tools of the agent, for the chat template.
        """

    def decode(self, tokens: list[int]) -> str:
        """Text of an action as the worker reads it, without the end token."""

    def ends(self, tokens: list[int], stop: Sequence[str] = ()) -> bool:
        """Whether the sampled tokens end with an end token of the model, or the last one completes a stop string."""

    @property
    def stop_tokens(self) -> tuple[int, ...]:
        """Tokens that end a turn in the model's chat template and at which a server does not stop by itself."""
