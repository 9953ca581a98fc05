"""ALFWorld: household tasks in text, on the real engine, with generated worlds or ALFWorld's own data set.

Paper: https://arxiv.org/abs/2010.03768. Doc page: docs/environments/alfworld.md.
"""

from verl_hier.environments.splits import pool
from verl_hier.hookspecs import hookimpl
from verl_hier.host.lazy import lazy
from verl_hier.host.specs import EnvironmentSpec
from verl_hier_plugins.environments.alfworld.options import SPLITS, AlfworldOptions

SPEC = EnvironmentSpec(
    "alfworld",
    lazy("verl_hier_plugins.environments.alfworld.environment:AlfworldEnvironment"),
    AlfworldOptions,
    tasks=lazy("verl_hier_plugins.environments.alfworld.tasks:tasks"),
    baselines=lazy("verl_hier_plugins.environments.alfworld.baselines:baselines"),
    fork="native",
    names_states=True,
    info=("won", "score", "goals_done", "goals", "places"),
    says_won=True,
    splits=tuple(SPLITS),
    pool=pool,
    scoring=("win_reward", "invalid_penalty", "anchor"),
    summary="ALFWorld's household tasks: generated worlds without a download, or the data set",
    source="arXiv 2010.03768; engine of alfworld 0.4.2 and textworld 1.7",
    extra="alfworld",
    modules=("alfworld", "textworld"),
)


@hookimpl
def hier_environments() -> EnvironmentSpec:
    return SPEC
