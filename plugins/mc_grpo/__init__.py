"""MC-GRPO, docs/estimators/mc_grpo.md."""

from verl_hier_plugins.mc_grpo.estimator import MCGRPOOptions, advantage

from verl_hier.hookspecs import hookimpl
from verl_hier.specs import EstimatorSpec

MC_GRPO = EstimatorSpec(
    name="mc_grpo",
    factory=advantage,
    options=MCGRPOOptions,
    summary="return against the group's median, scaled by its absolute deviation",
    source="MC-GRPO grpo_trainer_gsm.py::_generate_and_score_completions",
    doc="estimators/mc_grpo.md",
    requires=("trained", "episodes.return", "episodes.group", "episodes.trained"),
    confidence="A",
)


@hookimpl
def hier_estimators() -> list[EstimatorSpec]:
    """Brings `mc_grpo`."""
    return [MC_GRPO]
