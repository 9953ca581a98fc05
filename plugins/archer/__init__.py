"""ArCHer (arXiv 2402.19446), docs/estimators/archer.md."""

from verl_hier_plugins.archer.estimator import ArCHerOptions, advantage

from verl_hier.hookspecs import hookimpl
from verl_hier.specs import EstimatorSpec

ARCHER = EstimatorSpec(
    name="archer",
    factory=advantage,
    options=ArCHerOptions,
    summary="smaller Q minus smaller V of the utterance",
    source="arXiv 2402.19446 §3; YifeiZhou02/ArCHer trainer.py",
    doc="estimators/archer.md",
    requires=("q1", "q2", "v1", "v2", "trained"),
    needs_groups=False,
    needs_critic=True,
    confidence="A",
)


@hookimpl
def hier_estimators() -> list[EstimatorSpec]:
    """Brings `archer`."""
    return [ARCHER]
