"""LATR, lookahead tree rollouts (arXiv 2510.24302), docs/samplers/latr.md."""

from verl_hier_plugins.latr.sampler import LATR, LATROptions, leaves_of

from verl_hier.hookspecs import hookimpl
from verl_hier.specs import SamplerSpec


@hookimpl
def hier_samplers() -> list[SamplerSpec]:
    """The `latr` sampler."""
    return [
        SamplerSpec(
            name="latr",
            factory=LATR,
            options=LATROptions,
            summary="greedy paths that fork where the second token is nearly as likely, if they then diverge",
            source="arXiv 2510.24302; starreeze/latr (mechanism: confidence A)",
            doc="samplers/latr.md",
            episodes=leaves_of,
            needs_fork=True,
            needs_top_logprobs=True,
        )
    ]
