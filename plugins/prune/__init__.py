"""Pruning while episodes run, as ARRoL does (arXiv 2603.24840), with a score of one's own; docs/samplers/prune.md."""

from verl_hier_plugins.prune.sampler import Prune, PruneOptions, leaves_of

from verl_hier.hookspecs import hookimpl
from verl_hier.specs import SamplerSpec

SAMPLER = SamplerSpec(
    name="prune",
    factory=Prune,
    options=PruneOptions,
    summary="more episodes than needed, cut down while they run so that likely good and bad ones balance",
    source="arXiv 2603.24840 (ARRoL), whose score is a trained head (confidence C)",
    doc="samplers/prune.md",
    episodes=leaves_of,
)


@hookimpl
def hier_samplers() -> list[SamplerSpec]:
    """Brings the `prune` sampler."""
    return [SAMPLER]
