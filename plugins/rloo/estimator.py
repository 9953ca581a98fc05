"""RLOO (arXiv 2402.14740), docs/estimators/rloo.md.

Paper §2; released form: verl `compute_rloo_outcome_advantage`. Confidence A. GRPO with another centre and no scale.
"""

from dataclasses import dataclass

from verl_hier_plugins.grpo.estimator import GRPOOptions, advantage

from verl_hier.credit.groups import Centre, Scale

__all__ = ["RLOOOptions", "advantage"]


@dataclass(frozen=True)
class RLOOOptions(GRPOOptions):
    """GRPO's options with RLOO's centre and scale."""

    centre: Centre = "leave_one_out"
    """The mean of the other votes of the group."""
    scale: Scale = "none"
    """RLOO does not scale."""
