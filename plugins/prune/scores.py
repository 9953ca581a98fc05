"""How promising an unfinished episode is: the scores that `prune` brings, and those of a user's own."""

from __future__ import annotations

import inspect
import math
from collections.abc import Awaitable, Callable

from verl_hier.errors import RecipeError
from verl_hier.rollout.episode import Episode
from verl_hier.rollout.offsets import nodes_of
from verl_hier.specs import named_function, nearest

Score = Callable[[Episode], float | Awaitable[float]]
"""Higher is more promising. A coroutine function may ask the policy or a service of one's own."""

LINE = "hier.sampler.score"


def so_far(episode: Episode) -> float:
    """What the episode has been rewarded with."""
    return episode.ret


def confidence(episode: Episode) -> float:
    """Mean log p of its sampled tokens; 0 before the first.

    Raises:
        RecipeError: when the server gives no log-probs.
    """
    nodes = nodes_of(episode)
    if not all(node.logprobs for node in nodes):
        raise RecipeError(f"{LINE}: `confidence` needs log-probs of sampled tokens, and the rollout server gives none.")
    logprobs = [logprob for node in nodes for logprob in node.logprobs]
    return sum(logprobs) / len(logprobs) if logprobs else 0.0


def chance(episode: Episode) -> float:
    """A draw in [0, 1) of the episode's own: pruning that looks at nothing."""
    return episode.rollout.rng("prune", "chance", episode.id).random()


BUILT_IN: dict[str, Score] = {"return": so_far, "confidence": confidence, "random": chance}


def find(name: str) -> Score:
    """A built-in score, or a function named as `package.module:function`.

    Raises:
        RecipeError: when there is no such score.
    """
    if ":" in name:
        return named_function(name, LINE)
    if name not in BUILT_IN:
        raise RecipeError(
            f"{LINE}: {name!r} is not one of {', '.join(BUILT_IN)}{nearest(name, BUILT_IN)}; a function of your own "
            "is named `package.module:function`."
        )
    return BUILT_IN[name]


async def score_of(score: Score, episode: Episode) -> float:
    """The score of an episode.

    Raises:
        RecipeError: when the function raises, or returns anything but a finite number.
    """
    try:
        value = score(episode)
        if inspect.isawaitable(value):
            value = await value
        number = float(value)
    except RecipeError:
        raise
    except Exception as error:
        raise RecipeError(
            f"{LINE}: the score raised {type(error).__name__} on episode {episode.id}: {error}"
        ) from error
    if not math.isfinite(number):
        raise RecipeError(f"{LINE}: the score of episode {episode.id} is {number}; it must be a finite number.")
    return number
