"""ARPO, entropy-based adaptive rollout (arXiv 2507.19849 §3.1), docs/samplers/arpo.md."""

from __future__ import annotations

from dataclasses import dataclass

from verl_hier_plugins.arpo.chains import EntropyChains, Rule


@dataclass(frozen=True)
class Rising(Rule):
    """Branch when clip(U - w ΔH, 0, 1) <= p_b, that is with probability clip(p_b + w ΔH, 0, 1).

    Attributes:
        base: p_b.
        weight: w.
    """

    base: float
    weight: float

    def branches(self, draw: float, change: float) -> bool:
        """See `Rule.branches`."""
        return min(max(draw - self.weight * change, 0.0), 1.0) <= self.base

    def probability(self, change: float) -> float:
        """See `Rule.probability`; p_b = 1 always branches."""
        return 1.0 if self.base >= 1 else min(max(self.base + self.weight * change, 0.0), 1.0)


class ARPO(EntropyChains):
    """See `plugins/arpo`."""

    name = "arpo"

    def rule(self) -> Rule:
        """See `EntropyChains.rule`."""
        return Rising(self.options.branch_probability, self.options.entropy_weight)
