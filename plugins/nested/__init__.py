"""Plans, then executions of the best one. HiMAC, https://arxiv.org/abs/2603.00977; docs/samplers/nested.md."""

from verl_hier_plugins.nested.sampler import Nested, NestedOptions

from verl_hier.errors import RecipeError
from verl_hier.hookspecs import hookimpl
from verl_hier.specs import SamplerSpec


def _episodes(options: NestedOptions, n: int) -> int:
    if n < 2:
        raise RecipeError(
            f"actor_rollout_ref.rollout.n: the nested sampler compares executions of one plan, so n >= 2; got {n}."
        )
    return n


@hookimpl
def hier_samplers() -> list[SamplerSpec]:
    """The `nested` sampler."""
    return [
        SamplerSpec(
            name="nested",
            factory=Nested,
            options=NestedOptions,
            summary="several plans, each tried once; n executions of the best one",
            source="HiMAC, arXiv 2603.00977 (confidence B)",
            doc="samplers/nested.md",
            episodes=_episodes,
            needs_fork=True,
        )
    ]
