"""HisPO, a policy loss with a two-level importance mask, docs/estimators/hispo.md."""

from verl_hier_plugins.hispo.losses import Bands, hispo_loss

from verl_hier.hookspecs import hookimpl
from verl_hier.specs import PolicyLossSpec

LOSS = PolicyLossSpec(
    name="hispo",
    function=hispo_loss(Bands()),
    summary="clipped loss of tokens whose sequence and own ratio lie inside bands",
    source="LongCat-Flash-Prover (reading notes), confidence C",
)


@hookimpl
def hier_policy_losses() -> list[PolicyLossSpec]:
    """Brings the policy loss `hispo`."""
    return [LOSS]
