"""AT-GRPO, groups by agent and turn (arXiv 2510.11062), docs/methods/at_grpo.md.

GRPO with other keys.
"""

from dataclasses import dataclass

from verl_hier.credit import WeightBy
from verl_hier.hookspecs import hookimpl
from verl_hier.host.specs import EstimatorSpec
from verl_hier_plugins.estimators.grpo import GRPOOptions, advantage

__all__ = ["ATGRPOOptions", "advantage"]


@dataclass(frozen=True)
class ATGRPOOptions(GRPOOptions):
    """GRPO's options; candidates of one state are compared by the reward of their own turn."""

    score: str = "reward"
    """The turn's own reward: alpha * team + local."""
    group_by: tuple[str, ...] = ("group", "turn", "agent")
    """Candidates that were sampled from one state."""
    weight_by: WeightBy = "turn"
    """Every candidate has one vote."""


@hookimpl
def hier_estimators() -> EstimatorSpec:
    return EstimatorSpec(
        "at_grpo",
        advantage,
        ATGRPOOptions,
        summary="own reward of a turn among the candidates of the same turn and agent",
        source="arXiv 2510.11062; PettingLLMs multi_agents_ppo_trainer.py::_assign_consistent_uids",
        requires=("group", "turn", "agent", "reward", "trained"),
        confidence="A",
    )
