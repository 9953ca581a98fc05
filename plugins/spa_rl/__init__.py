"""SPA-RL (arXiv 2505.20732), docs/estimators/spa_rl.md."""

from verl_hier_plugins.spa_rl.estimator import SPAOptions, advantage

from verl_hier.hookspecs import hookimpl
from verl_hier.specs import EstimatorSpec

SPA_RL = EstimatorSpec(
    name="spa_rl",
    factory=advantage,
    options=SPAOptions,
    summary="token GAE with predicted progress as step rewards",
    source="arXiv 2505.20732 §3",
    doc="estimators/spa_rl.md",
    requires=("turn", "episode", "progress", "valid", "trained", "tokens.turn", "tokens.value"),
    granularity="token",
    needs_groups=False,
    needs_critic=True,
    confidence="A",
)


@hookimpl
def hier_estimators() -> list[EstimatorSpec]:
    """Brings `spa_rl`."""
    return [SPA_RL]
