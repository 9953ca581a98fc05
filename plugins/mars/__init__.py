"""MARS (arXiv 2510.15414), docs/estimators/mars.md."""

from verl_hier_plugins.mars.estimator import MARSOptions, advantage

from verl_hier.hookspecs import hookimpl
from verl_hier.specs import EstimatorSpec

MARS = EstimatorSpec(
    name="mars",
    factory=advantage,
    options=MARSOptions,
    summary="reward-to-go of each player's turns, normalised per player",
    source="arXiv 2510.15414; thu-nics/MARS roll/utils/functionals.py",
    doc="estimators/mars.md",
    requires=("agent", "episode", "turn", "reward", "n_tokens", "trained"),
    needs_groups=False,
    confidence="A",
)


@hookimpl
def hier_estimators() -> list[EstimatorSpec]:
    """Brings `mars`."""
    return [MARS]
