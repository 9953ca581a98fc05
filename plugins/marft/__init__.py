"""MARFT (arXiv 2504.16129), docs/estimators/marft.md."""

from verl_hier_plugins.marft.estimator import MARFTOptions, advantage, token_advantage

from verl_hier.hookspecs import hookimpl
from verl_hier.specs import EstimatorSpec

MARFT = EstimatorSpec(
    name="marft",
    factory=advantage,
    options=MARFTOptions,
    summary="GAE along the chain of the agents' actions",
    source="arXiv 2504.16129; jwliao-ai/MARFT action_level_buffer.py",
    doc="estimators/marft.md",
    requires=("reward", "done", "trained", "value"),
    needs_groups=False,
    needs_critic=True,
    confidence="A",
)

MARFT_TOKEN = EstimatorSpec(
    name="marft_token",
    factory=token_advantage,
    options=MARFTOptions,
    summary="GAE along the tokens of all agents, chained from one agent to the next",
    source="arXiv 2504.16129; jwliao-ai/MARFT (token level)",
    doc="estimators/marft.md",
    requires=("turn", "episode", "reward", "done", "trained", "tokens.turn", "tokens.value"),
    granularity="token",
    needs_groups=False,
    needs_critic=True,
    confidence="A",
)


@hookimpl
def hier_estimators() -> list[EstimatorSpec]:
    """Brings `marft` and `marft_token`."""
    return [MARFT, MARFT_TOKEN]
