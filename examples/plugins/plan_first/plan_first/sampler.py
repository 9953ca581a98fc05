"""A few plans, and several executions of each: episodes that are forked after their first turn."""

from dataclasses import dataclass

from verl_hier.errors import RecipeError
from verl_hier.hookspecs import hookimpl
from verl_hier.host.specs import SamplerSpec
from verl_hier.rollout import Rollout, Sampler
from verl_hier.rollout.branching import ForkPoint, advance_turn, fork_episodes, play_out, start_episodes


@dataclass(frozen=True)
class Options:
    """The fields are the options of `hier.sampler` in a recipe."""

    plans: int = 2
    """Different plans of a task."""


class PlanFirst(Sampler):
    """Starts, forks and plays only what `hier.budget` still allows: the helpers of `rollout.branching` see to it."""

    def __init__(self, options: Options) -> None:
        self._options = options

    async def sample(self, rollout: Rollout) -> None:
        """Make up to `rollout.n` episodes of one task, equally many of each plan."""
        planned = await advance_turn(rollout, start_episodes(rollout, self._options.plans))
        if not planned:
            return
        more = rollout.n - len(planned)
        forks = [ForkPoint(planned[number % len(planned)], after=1) for number in range(more)]
        await play_out(rollout, [*planned, *await fork_episodes(rollout, forks, beside=len(planned))])


def _episodes(options: Options, n: int) -> int:
    if n < options.plans:
        raise RecipeError(f"actor_rollout_ref.rollout.n: {options.plans} plans are more than n = {n}.")
    return n


SAMPLER = SamplerSpec(
    name="plan_first",
    factory=PlanFirst,
    options=Options,
    summary="a few plans, and several executions of each",
    source="example",
    episodes=_episodes,
    needs_fork=True,
)


@hookimpl
def hier_samplers() -> SamplerSpec:
    """Registers the sampler `plan_first`."""
    return SAMPLER
