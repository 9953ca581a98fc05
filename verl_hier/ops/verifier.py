"""A model that says how good an episode is, so that a search can choose by it: an endpoint, or one in this process."""

from __future__ import annotations

import math
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

from verl_hier.errors import RecipeError
from verl_hier.host.servers import loader_of
from verl_hier.ops.players import is_endpoint, with_model
from verl_hier.recipe.composed import ComposedRecipe
from verl_hier.rewards.judge import question, share_of
from verl_hier.rollout import Sampling
from verl_hier.rollout.rewards import RatedEpisode
from verl_hier.served.client import ChatClient

NAME = "search/verifier"
"""The reward function that asks it, by name; its weight is 0."""
MOST_TOKENS = 512
Ask = Callable[[str], Awaitable[tuple[str, float]]]
"""What the model answers to a question, and how many tokens it generated; NaN where nobody counts them."""


class Verifier:
    """A reward function that asks the question of `rewards.judge` about an episode, which does not hold true answers.

    Attributes:
        requests, tokens: what it was asked so far, and what it generated.
        silent: answers without a verdict, and questions that are too long for it.
    """

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self.requests = 0
        self.tokens = 0.0
        self.silent = 0

    async def __call__(self, rated: RatedEpisode) -> float | None:
        """What it says of an episode, from 0 to 1; None where it names no number."""
        self.requests += 1
        text, tokens = await self._ask(question(rated))
        self.tokens += tokens
        found = share_of(text)
        self.silent += found is None
        return found


def verifier_of(recipe: ComposedRecipe, named: str, model: str = "") -> Verifier:
    """The verifier that a user names; a model is loaded, or the endpoint asked, at the first question.

    Args:
        recipe: what is played; a model in this process has the lengths of its rollouts.
        named: address of an OpenAI-compatible endpoint, or folder or Hugging Face name of a model.
        model: the model's name at the endpoint.

    Raises:
        RecipeError: when there is no such model.
    """
    if is_endpoint(named):
        return Verifier(_endpoint(ChatClient(named, model, option="the verifier")))
    folder = Path(named).expanduser()
    if not (folder / "config.json").is_file() and (folder.exists() or named.startswith((".", "/")) or "/" not in named):
        known = f" ({', '.join(recipe.rewards)})" if recipe.rewards else ""
        raise RecipeError(f"verifier: {named!r} is neither an address, nor a model, nor a name of hier.rewards{known}.")
    return Verifier(_in_process(recipe, named))


def _endpoint(client: ChatClient) -> Ask:
    async def ask(text: str) -> tuple[str, float]:
        answer = await client.ask([{"role": "user", "content": text}], temperature=0.0, max_tokens=MOST_TOKENS)
        if answer is None:
            return "", math.nan
        return answer.text, math.nan if answer.tokens is None else float(answer.tokens)

    return ask


def _in_process(recipe: ComposedRecipe, model: str | os.PathLike[str]) -> Ask:
    from verl_hier.compat.runner import runner_of

    config = with_model(recipe.config, model)
    renderer, policy = runner_of(config).renderer, loader_of(recipe.host, config)(model)

    async def ask(text: str) -> tuple[str, float]:
        prompt = renderer.render([], [], [{"role": "user", "content": text}])
        sampling = Sampling(temperature=0.0, max_tokens=MOST_TOKENS, stop_tokens=renderer.stop_tokens)
        try:
            answer = await policy.generate(prompt, sampling, NAME)
        except ValueError:  # the question is longer than the model's context
            return "", 0.0
        return renderer.decode(answer.token_ids), float(len(answer.token_ids))

    return ask
