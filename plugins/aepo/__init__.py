"""AEPO (arXiv 2510.14545), docs/estimators/aepo.md: entropy-aware advantage, entropy-balanced clipping."""

from verl_hier_plugins.aepo.estimator import AEPOOptions, advantage
from verl_hier_plugins.aepo.losses import entropy_balanced_loss

from verl_hier.hookspecs import hookimpl
from verl_hier.specs import EstimatorSpec, PolicyLossSpec

AEPO = EstimatorSpec(
    name="aepo",
    factory=advantage,
    options=AEPOOptions,
    summary="z-score of the episode times 1 + weight * standardised token entropy",
    source="arXiv 2510.14545 §4; RUC-NLPIR/ARPO AEPO/verl_aepo_entropy",
    doc="estimators/aepo.md",
    requires=("trained", "episodes.return", "episodes.group", "episodes.trained", "tokens.turn", "tokens.logprob"),
    granularity="token",
    confidence="A",
)
LOSS = PolicyLossSpec(
    name="aepo",
    function=entropy_balanced_loss,
    summary="clipping whose upper bound keeps its gradient",
    source="arXiv 2510.14545 §4; compute_policy_loss_entropy_balanced_clipping",
)


@hookimpl
def hier_estimators() -> list[EstimatorSpec]:
    """Brings `aepo`."""
    return [AEPO]


@hookimpl
def hier_policy_losses() -> list[PolicyLossSpec]:
    """Brings the policy loss `aepo`."""
    return [LOSS]
