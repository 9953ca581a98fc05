"""Dr. MAS (arXiv 2602.08847), docs/estimators/dr_mas.md."""

from verl_hier_plugins.dr_mas.estimator import DrMASOptions, advantage

from verl_hier.hookspecs import hookimpl
from verl_hier.specs import EstimatorSpec

DR_MAS = EstimatorSpec(
    name="dr_mas",
    factory=advantage,
    options=DrMASOptions,
    summary="team return among the turns of the task by the same agent",
    source="arXiv 2602.08847; langfengQ/DrMAS core_algos.py",
    doc="estimators/dr_mas.md",
    requires=("group", "agent", "return", "valid", "trained"),
    confidence="A",
)


@hookimpl
def hier_estimators() -> list[EstimatorSpec]:
    """Brings `dr_mas`."""
    return [DR_MAS]
