"""What each policy loss does with loss weights, and how it adds up tokens.

Loss weights travel to a loss as verl's `rollout_is_weights`. Not every loss multiplies its tokens by them, and not
every one adds up tokens as `actor.loss_agg_mode` says. `VERL` is the table for verl's losses, which
`tests/unit/training/test_loss_table.py` proves by executing them; a loss of a plugin says it in its `PolicyLossSpec`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from verl_hier.host.manager import PluginHost
from verl_hier.host.specs import LossAggregation, LossWeights

ROW_MEANS = ("seq-mean-token-mean", "micro-batch-mean")
"""Ways to add up tokens in which every row weighs the same, whatever its length."""


@dataclass(frozen=True)
class PolicyLossUse:
    """What a loss does with the loss weights and the tokens that it is given.

    Attributes:
        weights: what it does with loss weights, see `LossWeights`; None where nobody says.
        aggregation: how it adds up tokens, see `LossAggregation`.
    """

    weights: LossWeights | None = "token"
    aggregation: LossAggregation = "loss_agg_mode"

    def mode(self, loss_agg_mode: str) -> str:
        """How tokens are added up: a mode of verl's `agg_loss`, or `micro-batch-mean`."""
        return loss_agg_mode if self.aggregation == "loss_agg_mode" else self.aggregation


VERL: Mapping[str, PolicyLossUse] = {
    "vanilla": PolicyLossUse("token"),
    "dppo_tv": PolicyLossUse("token"),
    "dppo_kl": PolicyLossUse("token"),
    "gspo": PolicyLossUse("token"),
    "sapo": PolicyLossUse("token", "seq-mean-token-mean"),
    "gpg": PolicyLossUse("token"),
    "clip_cov": PolicyLossUse("token"),
    "kl_cov": PolicyLossUse("token"),
    "geo_mean": PolicyLossUse("row", "micro-batch-mean"),
    "dro": PolicyLossUse("token"),
    "cispo": PolicyLossUse("token"),
    "bypass_mode": PolicyLossUse("none"),
}
"""verl 0.9's own losses, by the names of `actor.policy_loss.loss_mode`."""


@dataclass(frozen=True)
class PolicyLossOfRun:
    """The policy loss that a recipe names.

    Attributes:
        name: of the recipe line `actor_rollout_ref.actor.policy_loss.loss_mode`.
        weights: see `PolicyLossUse`.
        mode: how its tokens are added up: a mode of verl's `agg_loss`, or `micro-batch-mean`.
    """

    name: str = "vanilla"
    weights: LossWeights | None = "token"
    mode: str = "token-mean"

    @classmethod
    def of(cls, config: Mapping[str, Any], host: PluginHost) -> PolicyLossOfRun:
        """The loss of a composed recipe.

        Args:
            config: the whole recipe.
            host: its plugins, whose losses say themselves what they do.
        """
        actor = config["actor_rollout_ref"]["actor"]
        name = str((actor.get("policy_loss") or {}).get("loss_mode") or "vanilla")
        plugin = host.specs("policy_loss").get(name)
        if plugin is not None:
            use = PolicyLossUse(plugin.weights, plugin.aggregation)
        else:
            use = VERL.get(name, PolicyLossUse(None))
        return cls(name, use.weights, use.mode(str(actor.get("loss_agg_mode") or "token-mean")))

    @property
    def row_mean(self) -> bool:
        """Whether every row weighs the same before loss weights are applied, whatever its length."""
        return self.mode in ROW_MEANS
