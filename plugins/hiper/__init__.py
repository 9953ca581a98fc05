"""HiPER (arXiv 2602.16165), docs/estimators/hiper.md."""

from verl_hier_plugins.hiper.estimator import HiPEROptions, advantage

from verl_hier.hookspecs import hookimpl
from verl_hier.specs import EstimatorSpec

HIPER = EstimatorSpec(
    name="hiper",
    factory=advantage,
    options=HiPEROptions,
    summary="GAE inside subgoal segments, SMDP-GAE over them, termination values; each on its own tokens",
    source="arXiv 2602.16165 §4; JonP07/HiPER-agent hiper_hae/core_hae.py",
    doc="estimators/hiper.md",
    requires=(
        "reward",
        "segment",
        "parent",
        "episode",
        "done",
        "valid",
        "trained",
        "value",
        "episodes.turns",
        "tokens.turn",
        "tokens.action",
        "tokens.subgoal",
        "tokens.switch",
    ),
    granularity="token",
    needs_groups=False,
    needs_critic=True,
    confidence="A",
)


@hookimpl
def hier_estimators() -> list[EstimatorSpec]:
    """Brings `hiper`."""
    return [HIPER]
