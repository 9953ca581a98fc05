"""PORTool (arXiv 2510.26020), docs/estimators/portool.md and docs/samplers/portool.md."""

from verl_hier_plugins.portool.estimator import PORToolOptions, advantage
from verl_hier_plugins.portool.sampler import PORToolSampler, PORToolSamplerOptions, leaves_of

from verl_hier.hookspecs import hookimpl
from verl_hier.specs import EstimatorSpec, SamplerSpec

PORTOOL = EstimatorSpec(
    name="portool",
    factory=advantage,
    options=PORToolOptions,
    summary="step against its siblings of the fork plus the z-score of the leaves through it",
    source="arXiv 2510.26020 §3",
    doc="estimators/portool.md",
    requires=("group", "parent", "trained", "episodes.return", "episodes.group", "episodes.trained"),
    needs_tree=True,
    confidence="B",
)

SAMPLER = SamplerSpec(
    name="portool",
    factory=PORToolSampler,
    options=PORToolSamplerOptions,
    summary="n trajectories that fork at every turn; a random n of the candidates go on",
    source="arXiv 2510.26020 §3 (confidence B)",
    doc="samplers/portool.md",
    episodes=leaves_of,
    needs_fork=True,
)


@hookimpl
def hier_estimators() -> list[EstimatorSpec]:
    """Brings `portool`."""
    return [PORTOOL]


@hookimpl
def hier_samplers() -> list[SamplerSpec]:
    """Brings the `portool` sampler."""
    return [SAMPLER]
