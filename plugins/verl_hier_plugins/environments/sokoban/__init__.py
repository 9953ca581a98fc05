"""Sokoban as text: generated boards that can be solved, in four sizes; docs/environments/sokoban.md."""

from verl_hier.environments.splits import SPLITS, pool
from verl_hier.hookspecs import hookimpl
from verl_hier.host.lazy import lazy
from verl_hier.host.specs import EnvironmentSpec
from verl_hier_plugins.environments.sokoban.options import SokobanOptions

SPEC = EnvironmentSpec(
    "sokoban",
    lazy("verl_hier_plugins.environments.sokoban.environment:SokobanEnvironment"),
    SokobanOptions,
    tasks=lazy("verl_hier_plugins.environments.sokoban.environment:tasks"),
    baselines=lazy("verl_hier_plugins.environments.sokoban.baselines:baselines"),
    fork="native",
    names_states=True,
    info=("won", "score", "legend"),
    says_won=True,
    splits=SPLITS,
    pool=pool,
    scoring=("step_penalty", "box_reward", "finish_reward"),
    summary="boxes that have to be pushed onto goals: generated boards in four sizes",
    source="our own boards, in reverse from the solved one; rewards as gym-sokoban 0.0.6 gives them",
)


@hookimpl
def hier_environments() -> EnvironmentSpec:
    return SPEC
