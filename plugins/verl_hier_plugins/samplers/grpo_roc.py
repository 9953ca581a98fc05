"""GRPO-RoC: many episodes, of whose successes the cleanest are kept (arXiv 2508.20722), docs/methods/grpo_roc.md."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from verl_hier.environments.tag_pairs import pairs
from verl_hier.errors import RecipeError
from verl_hier.hookspecs import hookimpl
from verl_hier.host.constraints import AtLeastOne
from verl_hier.host.specs import SamplerSpec
from verl_hier.rollout import Episode, Rollout, Sampler
from verl_hier.rollout.branching import keep_only, play_out, start_episodes
from verl_hier.rollout.transcript import Transcript


@dataclass(frozen=True)
class GRPORoCOptions:
    """Options of `grpo_roc`. `actor_rollout_ref.rollout.n` is the number of episodes that are kept."""

    draw: AtLeastOne = 2.0
    """Episodes drawn, as a multiple of n, rounded up."""
    errors: bool = True
    """Whether failed tool calls make an episode less clean: the share of the environment's answers with the word
    `error`, 0.5 without an answer."""
    format: bool = True
    """Whether the answer's tags do: 1 when `<answer>` or `</answer>` is missing or they do not pair, else the further
    answers over the turns."""
    min_positive: int = 2
    """Episodes with a positive return that are kept at least, where there are as many."""
    min_zero: int = 2
    """Episodes without one that are kept at least, where there are as many."""
    drop_equal: bool = False
    """Train nothing of a task whose episodes all have the same return, as the released code; they have no advantage in
    any case, but their tokens stay in the denominator of the loss."""

    def __post_init__(self) -> None:
        if min(self.min_positive, self.min_zero) < 0:
            raise ValueError("min_positive and min_zero must be at least 0")


def leaves_of(options: GRPORoCOptions, n: int) -> int:
    """Leaves to train for one task.

    Raises:
        RecipeError: when the least numbers do not fit.
    """
    least = max(options.min_positive + options.min_zero, 1)
    if n < least:
        raise RecipeError(
            f"actor_rollout_ref.rollout.n: the grpo_roc sampler keeps at least min_positive + min_zero = {least} "
            f"episodes, so n >= {least}; got {n}."
        )
    return n


class GRPORoC(Sampler):
    """See the module."""

    def __init__(self, options: GRPORoCOptions) -> None:
        self._options = options

    async def sample(self, rollout: Rollout) -> None:
        """See `Sampler.sample`."""
        options = self._options
        complete = await play_out(rollout, start_episodes(rollout, math.ceil(rollout.n * options.draw)))
        returns = [episode.ret for episode in complete]
        if options.drop_equal and len(set(returns)) == 1:
            keep_only(rollout, complete, [], "equal_returns")
            return
        penalties = [self._penalty(episode) for episode in complete]
        for episode, penalty in zip(complete, penalties, strict=True):
            episode.record.decision["penalty"] = penalty
        places = kept(returns, penalties, rollout.n, options.min_positive, options.min_zero)
        keep_only(rollout, complete, [complete[place] for place in places], "not_kept")

    def _penalty(self, episode: Episode) -> float:
        """How unclean an episode is."""
        turns = Transcript.of(episode).turns
        penalty = 0.0
        if self._options.errors:
            penalty += error_share([call.step.text for turn in turns for call in turn.calls if not call.step.done])
        if self._options.format:
            penalty += format_penalty("".join(turn.text for turn in turns), len(turns))
        return penalty


def error_share(responses: Sequence[str]) -> float:
    """Share of the responses of tools that contain the word error, in any case of letters; 0.5 without a response."""
    if not responses:
        return 0.5
    return sum("error" in response.lower() for response in responses) / len(responses)


def format_penalty(text: str, turns: int) -> float:
    """1 when `<answer>` tags are missing or do not pair, else the answers beyond the first over the turns, at most 1.

    Args:
        text: what the agent wrote in the episode.
        turns: its turns.
    """
    answers = len(pairs(text, "answer"))
    if not answers or text.count("<answer>") != answers or text.count("</answer>") != answers or not turns:
        return 1.0
    return min((answers - 1) / turns, 1.0)


def kept(
    returns: Sequence[float], penalties: Sequence[float], number: int, min_positive: int, min_zero: int
) -> list[int]:
    """Places of the episodes of a task that are kept, in their order.

    Positive and other returns are kept in proportion, each at least as often as its least number where there are as
    many. The positive ones with the smallest penalties are kept, of equal ones the first; of the others the first.

    Args:
        returns, penalties: of the episodes.
        number: how many are kept; all when there are no more.
        min_positive, min_zero: see above.
    """
    if len(returns) <= number:
        return list(range(len(returns)))
    zero = [place for place, value in enumerate(returns) if value <= 0]
    positive = sorted((place for place, value in enumerate(returns) if value > 0), key=penalties.__getitem__)
    zeros, positives = (round(len(group) * number / len(returns)) for group in (zero, positive))
    if zeros < min_zero and positives < min_positive:
        return list(range(len(returns)))
    if zeros <= (least := min(min_zero, len(zero))):
        zeros, positives = least, number - least
    if positives <= (least := min(min_positive, len(positive))):
        zeros = number - least
    return sorted(positive[: number - zeros] + zero[:zeros])


@hookimpl
def hier_samplers() -> SamplerSpec:
    return SamplerSpec(
        "grpo_roc",
        GRPORoC,
        GRPORoCOptions,
        summary="more episodes than needed; of the successes the cleanest are kept, of the failures any",
        source="arXiv 2508.20722 (rStar2-Agent); microsoft/rStar down_sample/roc.py",
        episodes=leaves_of,
        sees_outcomes=True,
    )
