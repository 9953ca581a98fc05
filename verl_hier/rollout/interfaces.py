"""What a worker, a sampler and a policy are. Plugins subclass `Worker` and `Sampler`; the rest is given to them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from verl_hier.graph.nodes import CONTINUED as CONTINUED

if TYPE_CHECKING:
    from verl_hier.rollout.episode_view import EpisodeView
    from verl_hier.rollout.rollout import Rollout


class Worker(ABC):
    """Who speaks next, with what context: one coroutine an episode.

    The coroutine must be a pure function of what `episode` returns to it (its random numbers come from `episode.rng`):
    an episode is forked, and a stored one replayed, by running the coroutine again on the recorded answers.
    """

    @abstractmethod
    async def run(self, episode: EpisodeView) -> None:
        """Play one episode: `await episode.reset()`, then `episode.generate(...)` and `episode.act(...)` in turns.

        Returning ends the episode. `episode.generate` ends it from inside when a limit is reached.
        """


class Sampler(ABC):
    """Which episodes exist: one coroutine a task."""

    @abstractmethod
    async def sample(self, rollout: Rollout) -> None:
        """Start, step, fork and prune episodes of `rollout` until there are enough. What still runs at the return is
        pruned."""


@dataclass(frozen=True)
class Sampling:
    """How one turn is sampled.

    Attributes:
        temperature, top_p, top_k: as verl's rollout config has them; temperature 0 is greedy.
        max_tokens: generated tokens at most.
        seed: seed of the request, None to let the server choose.
        stop: strings that end the turn.
        top_logprobs: how many log-probs a position to ask for (0: the chosen token's only).
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    max_tokens: int = 512
    seed: int | None = None
    stop: tuple[str, ...] = ()
    top_logprobs: int = 0


@dataclass(frozen=True)
class Generation:
    """What the policy server answered.

    Attributes:
        token_ids: sampled tokens, the end token included.
        logprobs: log p of each, under the sampling temperature; empty when the server gives none.
        stop_reason: the server's word for why it stopped.
        version: lowest and highest weight version that took part.
        cached_tokens: prompt tokens that were not computed again.
        top_logprobs: a list of (token id, log p) for each position, when asked for and available.
        entropy: entropy at each position (nats), where the answer comes with one; a recorded answer does.
    """

    token_ids: list[int]
    logprobs: list[float]
    stop_reason: str | None = None
    version: tuple[int, int] = (0, 0)
    cached_tokens: int = 0
    top_logprobs: list[list[tuple[int, float]]] = field(default_factory=list)
    entropy: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Scored:
    """What the policy thinks of tokens that it did not sample just now.

    Attributes:
        logprobs: log p of each token at temperature 1.
        top: the likeliest (token id, log p) at each position, likeliest first.
        version: lowest and highest weight version that took part.
    """

    logprobs: list[float]
    top: list[list[tuple[int, float]]] = field(default_factory=list)
    version: tuple[int, int] = (0, 0)


class Policy(Protocol):
    """Token in, token out: one call to the policy server."""

    async def generate(self, prompt: list[int], sampling: Sampling, conversation: str) -> Generation:
        """Sample one turn.

        Args:
            prompt: the exact token ids.
            sampling: how.
            conversation: requests of one conversation stay on one replica, where their prefix is cached.

        Raises:
            RolloutError: when the server is gone.
        """

    async def score(self, prompt: list[int], tokens: list[int], conversation: str, top: int = 0) -> Scored:
        """Read `tokens` after `prompt` without sampling.

        Args:
            prompt: token ids, at least one.
            tokens: token ids to score.
            conversation: see `generate`.
            top: how many of the likeliest tokens to return for each position.

        Raises:
            RolloutError: when the server is gone or returns no log-probs of prompts.
        """


class Renderer(Protocol):
    """Turns observations into tokens, without ever tokenising sampled tokens again."""

    def render(self, tokens: list[int], history: list[dict[str, Any]], pending: list[dict[str, Any]]) -> list[int]:
        """The prompt after `pending` messages were added.

        Args:
            tokens: the context so far: prompts and actions, verbatim; empty for a new context.
            history: the messages that `tokens` stand for.
            pending: messages to add, each `{"role", "content"}`. Role `CONTINUED` is text inside the message that the
                agent spoke last: it follows `tokens` as it is, and the agent goes on in that message.
        """

    def decode(self, tokens: list[int]) -> str:
        """Text of an action as the worker reads it, without the end token."""

    def ends(self, tokens: list[int]) -> bool:
        """Whether the sampled tokens end with the model's own end of a turn."""
