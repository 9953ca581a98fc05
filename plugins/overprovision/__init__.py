"""More episodes than needed, the rest carried over (APRIL, arXiv 2509.18521); docs/samplers/overprovision.md."""

from verl_hier_plugins.overprovision.sampler import Overprovision, OverprovisionOptions, leaves_of

from verl_hier.hookspecs import hookimpl
from verl_hier.specs import SamplerSpec

SAMPLER = SamplerSpec(
    name="overprovision",
    factory=Overprovision,
    options=OverprovisionOptions,
    summary="launches more episodes than needed, stops when enough are complete, goes on with the rest next time",
    source="APRIL, arXiv 2509.18521; RLsys-Foundation/APRIL (mechanism: A; inside a task, not over prompts: ours)",
    doc="samplers/overprovision.md",
    episodes=leaves_of,
)


@hookimpl
def hier_samplers() -> list[SamplerSpec]:
    """Brings the `overprovision` sampler."""
    return [SAMPLER]
