"""Chain-of-Agents (arXiv 2508.13167), docs/estimators/chain_of_agents.md."""

from verl_hier_plugins.chain_of_agents.estimator import ChainOfAgentsOptions, advantage

from verl_hier.hookspecs import hookimpl
from verl_hier.specs import EstimatorSpec

CHAIN_OF_AGENTS = EstimatorSpec(
    name="chain_of_agents",
    factory=advantage,
    options=ChainOfAgentsOptions,
    summary="GRPO with flat tasks filtered and credit on the tags of chosen agents",
    source="arXiv 2508.13167; OPPO Agent_Foundation_Models",
    doc="estimators/chain_of_agents.md",
    requires=("episode", "trained", "episodes.return", "episodes.group", "episodes.trained"),
    confidence="A",
)


@hookimpl
def hier_estimators() -> list[EstimatorSpec]:
    """Brings `chain_of_agents`."""
    return [CHAIN_OF_AGENTS]
