"""More episodes than are needed, cut down at checkpoints while they run; docs/methods/prune.md."""

from __future__ import annotations

import inspect
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from verl_hier.errors import RecipeError, did_you_mean, raised
from verl_hier.hookspecs import hookimpl
from verl_hier.host.constraints import ZeroToOne
from verl_hier.host.lazy import named_function
from verl_hier.host.specs import SamplerSpec
from verl_hier.rollout import Episode, Rollout, Sampler
from verl_hier.rollout.branching import play_out, reach, start_episodes

# How promising an unfinished episode is: the scores that `prune` brings, and those of a user's own.
Score = Callable[[Episode], float | Awaitable[float]]
"""Higher is more promising. A coroutine function may ask the policy or a service of one's own."""

LINE = "hier.sampler.score"


def so_far(episode: Episode) -> float:
    """Return of the episode so far."""
    return episode.ret


def confidence(episode: Episode) -> float:
    """Mean log p of its sampled tokens; 0 before the first.

    Raises:
        RecipeError: when the server gives no log-probs.
    """
    nodes = episode.nodes
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
            f"{LINE}: {name!r} is not one of {', '.join(BUILT_IN)}{did_you_mean(name, BUILT_IN)}; a function of your "
            "own is named `package.module:function`."
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
        raise RecipeError(f"{LINE}: the score raised {raised(error)} on episode {episode.id}.") from error
    if not math.isfinite(number):
        raise RecipeError(f"{LINE}: the score of episode {episode.id} is {number}; it must be a finite number.")
    return number


@dataclass(frozen=True)
class PruneOptions:
    """Options of `prune`. `actor_rollout_ref.rollout.n` is the number of episodes that are left at the end."""

    start: float = 2.0
    """Episodes started, as a multiple of n, rounded up."""
    checkpoints: tuple[int, ...] = (2,)
    """Where every episode is scored and some are given up, in `unit`: equal parts at each; n remain after the last."""
    unit: Literal["turns", "tokens"] = "turns"
    """What `checkpoints` count: turns, or sampled tokens (which cuts turns that go on behind them)."""
    score: str = "confidence"
    """How promising an episode is: `return` (so far), `confidence` (mean log p), `random`, or a function
    `package.module:function` that takes the episode and returns a number, higher for better."""
    balance: ZeroToOne = 0.5
    """Share of the survivors that are the most promising ones; the others are the least promising ones."""

    def __post_init__(self) -> None:
        if self.start <= 1:
            raise ValueError(f"start must be above 1, got {self.start}; without more episodes nothing is given up")
        if not self.checkpoints or min(self.checkpoints) < 1 or list(self.checkpoints) != sorted(set(self.checkpoints)):
            raise ValueError(f"checkpoints must rise from at least 1, got {list(self.checkpoints)}")


def leaves_of(options: PruneOptions, n: int) -> int:
    """Leaves to train for one task.

    Raises:
        RecipeError: for fewer than one, or when there is no such score.
    """
    find(options.score)
    if n < 1:
        raise RecipeError(f"actor_rollout_ref.rollout.n: the prune sampler keeps n episodes, n >= 1; got {n}.")
    return n


class Prune(Sampler):
    """See the module."""

    def __init__(self, options: PruneOptions) -> None:
        self._options = options
        self._score = find(options.score)

    async def sample(self, rollout: Rollout) -> None:
        """See `Sampler.sample`."""
        wanted = math.ceil(rollout.n * self._options.start)
        episodes = start_episodes(rollout, wanted)
        rounds = len(self._options.checkpoints)
        for number, checkpoint in enumerate(self._options.checkpoints):
            await self._play_to(rollout, episodes, checkpoint)
            await self._prune(rollout, _alive(episodes), number, wanted - (wanted - rollout.n) * (number + 1) // rounds)
        await play_out(rollout, _alive(episodes))

    async def _play_to(self, rollout: Rollout, episodes: list[Episode], checkpoint: int) -> None:
        """Until each episode is at the checkpoint or over."""
        if self._options.unit == "tokens":
            await reach(rollout, episodes, checkpoint)
            return
        running = episodes
        while running := [e for e in running if not e.over and len(e.boundaries) - 1 < checkpoint]:
            await rollout.advance(running)

    async def _prune(self, rollout: Rollout, alive: list[Episode], number: int, keep: int) -> None:
        """Score all episodes, the complete ones too, and give up those in the middle."""
        scores = await rollout.gather(score_of(self._score, episode) for episode in alive)
        for episode, score in zip(alive, scores, strict=True):
            episode.record.decision[f"score_{number}"] = score
        order = list(range(len(alive)))
        rollout.rng("prune", "ties", number).shuffle(order)
        kept = survivors(scores, keep, self._options.balance, order)
        for place, episode in enumerate(alive):
            if place not in kept:
                episode.discard(f"pruned_at_{number}")
                rollout.count("pruned_early")


def survivors(scores: Sequence[float], keep: int, balance: float, order: Sequence[int]) -> set[int]:
    """Places of the episodes that stay.

    Args:
        scores: of all of them.
        keep: how many stay, at most.
        balance: share of these that are the best ones, rounded to the nearest; the rest are the worst.
        order: all places; of equal scores the earlier one in it counts as better.
    """
    ranked = sorted(order, key=lambda place: -scores[place])
    keep = min(keep, len(ranked))
    best = math.floor(balance * keep + 0.5)
    return {*ranked[:best], *ranked[len(ranked) - (keep - best) :]}


def _alive(episodes: list[Episode]) -> list[Episode]:
    return [episode for episode in episodes if episode.complete or not episode.over]


@hookimpl
def hier_samplers() -> SamplerSpec:
    return SamplerSpec(
        "prune",
        Prune,
        PruneOptions,
        summary="more episodes than needed, cut down while they run so that likely good and bad ones balance",
        source="arXiv 2603.24840 (ARRoL), whose score is a trained head (confidence C)",
        episodes=leaves_of,
        needs_logprobs=lambda options: options.score == "confidence",
        needs_tokens=lambda options: options.unit == "tokens",
        sees_outcomes=lambda options: options.score == "return",
    )
