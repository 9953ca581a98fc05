"""TextWorld: generated text adventures with quests, in the words of the compiled game or in few of our own.

Paper: https://arxiv.org/abs/1806.11532. Doc page: docs/environments/textworld.md.
"""

from verl_hier.environments.splits import SPLITS, pool
from verl_hier.hookspecs import hookimpl
from verl_hier.host.lazy import lazy
from verl_hier.host.specs import EnvironmentSpec
from verl_hier_plugins.environments.textworld.options import TextworldOptions

SPEC = EnvironmentSpec(
    "textworld",
    lazy("verl_hier_plugins.environments.textworld.environment:TextworldEnvironment"),
    TextworldOptions,
    tasks=lazy("verl_hier_plugins.environments.textworld.tasks:tasks"),
    baselines=lazy("verl_hier_plugins.environments.textworld.baselines:baselines"),
    fork="native",
    names_states=True,
    info=("won", "score", "points"),
    says_won=True,
    splits=SPLITS,
    pool=pool,
    summary="TextWorld's adventures: generated from a seed, or game files of your own",
    source="arXiv 1806.11532; generator, logic and Inform 7 games of textworld 1.7",
    extra="textworld",
    modules=("textworld",),
)


@hookimpl
def hier_environments() -> EnvironmentSpec:
    return SPEC
