"""CoDA with PECO (arXiv 2512.12716), docs/estimators/coda_peco.md."""

from verl_hier_plugins.coda_peco.estimator import CoDAOptions, advantage

from verl_hier.hookspecs import hookimpl
from verl_hier.specs import EstimatorSpec

CODA_PECO = EstimatorSpec(
    name="coda_peco",
    factory=advantage,
    options=CoDAOptions,
    summary="rollout return by the statistics of the planners, for planners and executors",
    source="arXiv 2512.12716; liuxuanzhang718/CoDA core_algos.py",
    doc="estimators/coda_peco.md",
    requires=("group", "episode", "level", "return", "trained"),
    levels=(0, 1),
    confidence="A",
)


@hookimpl
def hier_estimators() -> list[EstimatorSpec]:
    """Brings `coda_peco`."""
    return [CODA_PECO]
