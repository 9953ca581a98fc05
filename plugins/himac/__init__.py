"""HiMAC, blueprints and executions (arXiv 2603.00977), docs/estimators/himac.md."""

from verl_hier_plugins.himac.estimator import HiMACOptions, advantage

from verl_hier.hookspecs import hookimpl
from verl_hier.specs import EstimatorSpec

HIMAC = EstimatorSpec(
    name="himac",
    factory=advantage,
    options=HiMACOptions,
    summary="blueprints against blueprints of the task, executions against executions of the same blueprint",
    source="arXiv 2603.00977 §3 (reading notes; no public code found)",
    doc="estimators/himac.md",
    requires=("group", "episode", "level", "plan", "return", "trained", "episodes.return", "episodes.trained"),
    levels=(0, 1),
    confidence="B",
)


@hookimpl
def hier_estimators() -> list[EstimatorSpec]:
    """Brings `himac`."""
    return [HIMAC]
