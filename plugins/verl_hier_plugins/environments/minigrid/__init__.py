"""MiniGrid and BabyAI as text: an agent that sees a few cells ahead, in words; docs/environments/minigrid.md.

Papers: https://arxiv.org/abs/2306.13831 and https://arxiv.org/abs/1810.08272.
"""

from verl_hier.environments.splits import SPLITS, pool
from verl_hier.hookspecs import hookimpl
from verl_hier.host.lazy import lazy
from verl_hier.host.specs import EnvironmentSpec
from verl_hier_plugins.environments.minigrid.options import MinigridOptions

SPEC = EnvironmentSpec(
    "minigrid",
    lazy("verl_hier_plugins.environments.minigrid.environment:MinigridEnvironment"),
    MinigridOptions,
    tasks=lazy("verl_hier_plugins.environments.minigrid.environment:tasks"),
    baselines=lazy("verl_hier_plugins.environments.minigrid.baselines:baselines"),
    fork="native",
    names_states=True,
    info=("won", "score"),
    says_won=True,
    splits=SPLITS,
    pool=pool,
    scoring=("reward",),
    summary="MiniGrid's and BabyAI's grids, seen in words by an agent in them",
    source="arXiv 2306.13831 and 1810.08272; worlds and bot of minigrid 3.2.0",
    extra="minigrid",
    modules=("minigrid", "gymnasium"),
)


@hookimpl
def hier_environments() -> EnvironmentSpec:
    return SPEC
