"""n independent episodes a task, as flat GRPO has them; docs/methods/grpo.md."""

from verl_hier.hookspecs import hookimpl
from verl_hier.host.specs import NoOptions, SamplerSpec
from verl_hier.rollout import Rollout, Sampler
from verl_hier.rollout.branching import at_least


class Independent(Sampler):
    """Episodes that share nothing but the task."""

    def __init__(self, options: NoOptions) -> None:
        self._options = options

    async def sample(self, rollout: Rollout) -> None:
        """See `Sampler.sample`."""
        episodes = [rollout.start() for _ in range(rollout.n)]
        await rollout.run(episodes)


@hookimpl
def hier_samplers() -> SamplerSpec:
    """The `independent` sampler."""
    return SamplerSpec(
        name="independent",
        factory=Independent,
        summary="n episodes that share nothing but the task",
        source="GRPO, arXiv 2402.03300 §4.1",
        episodes=at_least(1, "independent sampler plays n episodes"),
    )
