"""TextWorldExpress: seven text games on one Java machine a process; docs/environments/textworld_express.md.

Paper: https://arxiv.org/abs/2208.01174.
"""

from verl_hier.environments.splits import SPLITS, pool
from verl_hier.hookspecs import hookimpl
from verl_hier.host.lazy import lazy
from verl_hier.host.specs import EnvironmentSpec
from verl_hier_plugins.environments.textworld_express.options import TextworldExpressOptions

SPEC = EnvironmentSpec(
    "textworld_express",
    lazy("verl_hier_plugins.environments.textworld_express.environment:TextworldExpressEnvironment"),
    TextworldExpressOptions,
    tasks=lazy("verl_hier_plugins.environments.textworld_express.tasks:tasks"),
    baselines=lazy("verl_hier_plugins.environments.textworld_express.baselines:baselines"),
    fork="replay",
    names_states=True,
    info=("won", "score", "task"),
    says_won=True,
    splits=SPLITS,
    pool=pool,
    summary="seven games of TextWorldExpress, from a coin in a house to a recipe that has to be cooked",
    source="arXiv 2208.01174; games of textworld-express 1.1.0",
    extra="textworld_express",
    modules=("textworld_express", "py4j"),
)


@hookimpl
def hier_environments() -> EnvironmentSpec:
    return SPEC
