"""verl's own estimator, which `algorithm.adv_estimator` names and verl's trainer computes, docs/methods/verl.md."""

from typing import Any

from verl_hier.errors import CreditError
from verl_hier.hookspecs import hookimpl
from verl_hier.host.specs import EstimatorSpec, NoOptions


def _verl_computes_it(table: Any, options: NoOptions) -> Any:
    raise CreditError("estimator 'verl' is computed by verl's trainer, from `algorithm.adv_estimator`, not offline.")


@hookimpl
def hier_estimators() -> EstimatorSpec:
    """The `verl` estimator."""
    return EstimatorSpec(
        name="verl",
        factory=_verl_computes_it,
        summary="verl's own estimator, named by algorithm.adv_estimator",
        source="verl/trainer/ppo/v1/utils.py, compute_advantage_for_multi_trajectories",
        needs_groups=False,
        confidence="A",
        native=True,
    )
