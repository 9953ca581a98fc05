"""Flow-GRPO of AgentFlow (arXiv 2510.05592), docs/estimators/flow_grpo.md.

Released form: AgentFlow configuration; the final outcome is copied to every planner turn. Confidence A for that, the
votes are not confirmed: one an episode here. GRPO under its own name; frozen modules are turns that are not trained.
"""

from dataclasses import dataclass

from verl_hier_plugins.grpo.estimator import GRPOOptions, advantage

__all__ = ["FlowGRPOOptions", "advantage"]


@dataclass(frozen=True)
class FlowGRPOOptions(GRPOOptions):
    """GRPO's options and defaults."""
