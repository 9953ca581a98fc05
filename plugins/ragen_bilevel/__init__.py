"""RAGEN bi-level GAE, docs/estimators/ragen_bilevel.md."""

from verl_hier_plugins.ragen_bilevel.estimator import BilevelOptions, advantage

from verl_hier.hookspecs import hookimpl
from verl_hier.specs import EstimatorSpec

RAGEN_BILEVEL = EstimatorSpec(
    name="ragen_bilevel",
    factory=advantage,
    options=BilevelOptions,
    summary="GAE over turn ends, its return spread by GAE inside the turn",
    source="mll-lab-nu/RAGEN compute_bi_level_gae_advantage_return",
    doc="estimators/ragen_bilevel.md",
    requires=("reward", "trained", "tokens.turn", "tokens.value"),
    granularity="token",
    needs_groups=False,
    needs_critic=True,
    confidence="A",
)


@hookimpl
def hier_estimators() -> list[EstimatorSpec]:
    """Brings `ragen_bilevel`."""
    return [RAGEN_BILEVEL]
