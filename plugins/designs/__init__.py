"""Designs, each executed several times. MetaAgent-X, https://arxiv.org/abs/2605.14212; docs/samplers/designs.md."""

from verl_hier_plugins.designs.sampler import Designs, DesignsOptions

from verl_hier.errors import RecipeError
from verl_hier.hookspecs import hookimpl
from verl_hier.specs import SamplerSpec


def _episodes(options: DesignsOptions, n: int) -> int:
    wanted = options.designs * options.executions
    if n != wanted:
        raise RecipeError(
            f"actor_rollout_ref.rollout.n: {options.designs} designs x {options.executions} executions are {wanted} "
            f"episodes a task, got {n}; set it to {wanted}, or change hier.sampler.designs and hier.sampler.executions."
        )
    return n


@hookimpl
def hier_samplers() -> list[SamplerSpec]:
    """The `designs` sampler."""
    return [
        SamplerSpec(
            name="designs",
            factory=Designs,
            options=DesignsOptions,
            summary="several designs a task, each executed several times; failed designs are dropped",
            source="MetaAgent-X, arXiv 2605.14212; PettingLLMs",
            doc="samplers/designs.md",
            episodes=_episodes,
            needs_fork=True,
        )
    ]
