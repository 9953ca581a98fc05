"""RLVMR (arXiv 2507.22844), docs/estimators/rlvmr.md."""

from verl_hier_plugins.rlvmr.estimator import RLVMROptions, advantage

from verl_hier.hookspecs import hookimpl
from verl_hier.specs import EstimatorSpec

RLVMR = EstimatorSpec(
    name="rlvmr",
    factory=advantage,
    options=RLVMROptions,
    summary="episode z-score mixed with the z-score among steps of the same tag",
    source="arXiv 2507.22844 (reading notes)",
    doc="estimators/rlvmr.md",
    requires=("group", "tag", "tag_reward", "trained", "episodes.return", "episodes.group", "episodes.trained"),
    confidence="B",
)


@hookimpl
def hier_estimators() -> list[EstimatorSpec]:
    """Brings `rlvmr`."""
    return [RLVMR]
