"""ScienceWorld: experiments of science lessons on one Java machine a process; docs/environments/scienceworld.md.

Paper: https://arxiv.org/abs/2203.07540.
"""

from verl_hier.environments.splits import SPLITS, pool
from verl_hier.hookspecs import hookimpl
from verl_hier.host.lazy import lazy
from verl_hier.host.specs import EnvironmentSpec
from verl_hier_plugins.environments.scienceworld.options import ScienceworldOptions

SPEC = EnvironmentSpec(
    "scienceworld",
    lazy("verl_hier_plugins.environments.scienceworld.environment:ScienceworldEnvironment"),
    ScienceworldOptions,
    tasks=lazy("verl_hier_plugins.environments.scienceworld.tasks:tasks"),
    baselines=lazy("verl_hier_plugins.environments.scienceworld.baselines:baselines"),
    fork="replay",
    scoring=("reward", "win_reward", "invalid_penalty"),
    names_states=True,
    info=("won", "score", "task"),
    says_won=True,
    splits=SPLITS,
    pool=pool,
    summary="ScienceWorld's thirty kinds of experiments, from finding a plant to genetics",
    source="arXiv 2203.07540; scienceworld 1.2.3",
    extra="scienceworld",
    modules=("scienceworld", "py4j"),
)


@hookimpl
def hier_environments() -> EnvironmentSpec:
    return SPEC
