"""Episodes that go on from states seen before, as Go-Explore does (arXiv 2004.12919); docs/samplers/anchored.md."""

from verl_hier_plugins.anchored.sampler import Anchored, AnchoredOptions, leaves_of

from verl_hier.hookspecs import hookimpl
from verl_hier.specs import SamplerSpec

SAMPLER = SamplerSpec(
    name="anchored",
    factory=Anchored,
    options=AnchoredOptions,
    summary="some episodes from the start, the others from states that those passed through",
    source="returning to states: Go-Explore, arXiv 2004.12919; anchor states: GiGPO, arXiv 2505.10978 (confidence C)",
    doc="samplers/anchored.md",
    episodes=leaves_of,
    needs_fork=True,
)


@hookimpl
def hier_samplers() -> list[SamplerSpec]:
    """Brings the `anchored` sampler."""
    return [SAMPLER]
