"""The best of n candidates at every turn. AT-GRPO, https://arxiv.org/abs/2510.11062; docs/samplers/best_of_turn.md."""

from verl_hier_plugins.best_of_turn.sampler import REWARD, BestOfTurn, BestOfTurnOptions, leaves_of

from verl_hier.hookspecs import hookimpl
from verl_hier.specs import SamplerSpec

SAMPLER = SamplerSpec(
    name="best_of_turn",
    factory=BestOfTurn,
    options=BestOfTurnOptions,
    summary="n candidates at every turn of every agent; the best one's state goes on, all are trained",
    source="AT-GRPO, arXiv 2510.11062; PettingLLMs (confidence A)",
    doc="samplers/best_of_turn.md",
    episodes=leaves_of,
    needs_fork=True,
    provides=(REWARD,),
)


@hookimpl
def hier_samplers() -> list[SamplerSpec]:
    """Brings the `best_of_turn` sampler."""
    return [SAMPLER]
