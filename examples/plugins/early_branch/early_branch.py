"""A few episodes from the beginning, and forks of them after their first turn: the smallest branching sampler."""

from dataclasses import dataclass

from verl_hier.errors import RecipeError
from verl_hier.hookspecs import hookimpl
from verl_hier.host.specs import SamplerSpec
from verl_hier.rollout import Rollout, Sampler
from verl_hier.rollout.branching import ForkPoint, advance_turn, fork_episodes, play_out, start_episodes


@dataclass(frozen=True)
class Options:
    """The fields are the options of `hier.sampler` in a recipe."""

    trees: int = 1
    """Episodes that start from the beginning; the others are forks of them after one turn."""


class EarlyBranch(Sampler):
    """Starts, forks and plays only what `hier.budget` still allows: the helpers of `rollout.branching` see to it."""

    def __init__(self, options: Options) -> None:
        self._options = options

    async def sample(self, rollout: Rollout) -> None:
        """Make up to `rollout.n` episodes of one task."""
        roots = await advance_turn(rollout, start_episodes(rollout, self._options.trees))
        if not roots:
            return
        forks = [ForkPoint(roots[number % len(roots)], after=1) for number in range(rollout.n - len(roots))]
        await play_out(rollout, [*roots, *await fork_episodes(rollout, forks, beside=len(roots))])


def _episodes(options: Options, n: int) -> int:
    if n < options.trees:
        raise RecipeError(f"actor_rollout_ref.rollout.n: {options.trees} trees are more than n = {n}.")
    return n


SAMPLER = SamplerSpec(
    name="early_branch",
    factory=EarlyBranch,
    options=Options,
    summary="episodes that share the first turn of their tree",
    source="example",
    episodes=_episodes,
    needs_fork=True,
)


@hookimpl
def hier_samplers() -> SamplerSpec:
    """Registers `early_branch`."""
    return SAMPLER
