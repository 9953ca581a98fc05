"""More episodes where a task is uncertain (XRPO, arXiv 2510.06672) or hard (DARS); docs/samplers/adaptive_n.md."""

from verl_hier_plugins.adaptive_n.sampler import AdaptiveN, AdaptiveNOptions, leaves_of

from verl_hier.hookspecs import hookimpl
from verl_hier.specs import SamplerSpec

SAMPLER = SamplerSpec(
    name="adaptive_n",
    factory=AdaptiveN,
    options=AdaptiveNOptions,
    summary="episodes in rounds, as long as a task is uncertain or hard, up to n",
    source="XRPO, arXiv 2510.06672 (priority: B, threshold: ours); DARS, arXiv 2508.13755 (C)",
    doc="samplers/adaptive_n.md",
    episodes=leaves_of,
)


@hookimpl
def hier_samplers() -> list[SamplerSpec]:
    """Brings the `adaptive_n` sampler."""
    return [SAMPLER]
