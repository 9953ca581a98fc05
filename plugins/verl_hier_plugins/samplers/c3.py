"""C3: alternatives of each message, replayed from the same transcript (arXiv 2603.06859), docs/methods/c3.md."""

from __future__ import annotations

import math
from dataclasses import dataclass

from verl_hier.errors import RecipeError
from verl_hier.hookspecs import hookimpl
from verl_hier.host.constraints import Count
from verl_hier.host.specs import SamplerSpec
from verl_hier.rollout import Episode, Rollout, Sampler
from verl_hier.rollout.branching import (
    ForkPoint,
    advance_part,
    fork_episodes,
    play_out,
    start_episodes,
    within_message,
)


@dataclass(frozen=True)
class C3SamplerOptions:
    """Options of `c3`. `actor_rollout_ref.rollout.n` is the product of `fanout`, the leaves of a full tree."""

    fanout: tuple[int, ...] = (2, 4)
    """Alternatives of the first message, of the second one after each of these, and so on: one number for each role of
    a sequence. Messages behind the last number are said once."""
    train_rest: bool = False
    """Whether the messages behind the last number are trained; without alternatives they have no credit."""
    replays: Count = 1
    """How often what follows the last alternatives is played; all but the first of them only measure, and are not
    trained."""

    def __post_init__(self) -> None:
        if not self.fanout or min(self.fanout) < 1 or max(self.fanout) < 2:
            raise ValueError(f"fanout must be numbers of at least 1, one of them at least 2, got {list(self.fanout)}")


def leaves_of(options: C3SamplerOptions, n: int) -> int:
    """Leaves to train for one task.

    Raises:
        RecipeError: when `n` is another number than those of a full tree.
    """
    full = math.prod(options.fanout)
    if n != full:
        raise RecipeError(
            f"actor_rollout_ref.rollout.n: hier.sampler.fanout {list(options.fanout)} of the c3 sampler makes {full} "
            f"leaves, so n must be {full}; got {n}."
        )
    return n


class C3Sampler(Sampler):
    """See the module."""

    def __init__(self, options: C3SamplerOptions) -> None:
        self._options = options

    async def sample(self, rollout: Rollout) -> None:
        """See `Sampler.sample`."""
        first, *rest = self._options.fanout
        paths = start_episodes(rollout, first, message=0)
        leaves = len(paths)
        for message, number in enumerate(rest, start=1):
            paths = await advance_part(rollout, paths, within_message)
            places = [
                ForkPoint(path, decision={"message": message, "alternative": other})
                for path in paths
                for other in range(1, number)
            ]
            forks = await fork_episodes(rollout, places, beside=len(paths))
            paths, leaves = paths + forks, leaves + len(forks)
        # A path that ends before it has had all messages has no alternatives to the others.
        rollout.expected = min(rollout.expected, leaves)
        paths = await advance_part(rollout, paths, within_message)
        await play_out(rollout, [*paths, *await self._measure(rollout, paths)])

    async def _measure(self, rollout: Rollout, paths: list[Episode]) -> list[Episode]:
        """Further episodes behind the last alternatives, which only measure."""
        for path in paths:
            path.trained = self._options.train_rest
        numbers = range(1, self._options.replays)
        places = [ForkPoint(path, decision={"replay": k}, trained=False) for path in paths for k in numbers]
        forks = await fork_episodes(rollout, places, beside=len(paths))
        for fork in forks:
            fork.withhold()
        return forks


@hookimpl
def hier_samplers() -> SamplerSpec:
    return SamplerSpec(
        "c3",
        C3Sampler,
        C3SamplerOptions,
        summary="alternatives of each message of a team, all from the same transcript",
        source="arXiv 2603.06859; EIT-EAST-Lab/C3 c3/mas/rollout_generator.py",
        episodes=leaves_of,
        roots=lambda options, n: options.fanout[0],
        needs_fork=True,
    )
