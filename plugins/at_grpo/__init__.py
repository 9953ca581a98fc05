"""AT-GRPO (arXiv 2510.11062), docs/estimators/at_grpo.md."""

from verl_hier_plugins.at_grpo.estimator import ATGRPOOptions, advantage

from verl_hier.hookspecs import hookimpl
from verl_hier.specs import EstimatorSpec

AT_GRPO = EstimatorSpec(
    name="at_grpo",
    factory=advantage,
    options=ATGRPOOptions,
    summary="own reward of a turn among the candidates of the same turn and agent",
    source="arXiv 2510.11062; PettingLLMs multi_agents_ppo_trainer.py::_assign_consistent_uids",
    doc="estimators/at_grpo.md",
    requires=("group", "turn", "agent", "reward", "trained"),
    confidence="A",
)


@hookimpl
def hier_estimators() -> list[EstimatorSpec]:
    """Brings `at_grpo`."""
    return [AT_GRPO]
