"""Generated packages with failing tests, to be mended and judged by hidden ones; docs/environments/repository.md."""

from verl_hier.environments.splits import SPLITS, pool
from verl_hier.hookspecs import hookimpl
from verl_hier.host.lazy import lazy
from verl_hier.host.specs import EnvironmentSpec
from verl_hier_plugins.environments.repository.options import RepositoryOptions

SPEC = EnvironmentSpec(
    "repository",
    lazy("verl_hier_plugins.environments.repository.environment:build"),
    RepositoryOptions,
    tasks=lazy("verl_hier_plugins.environments.repository.tasks:tasks"),
    baselines=lazy("verl_hier_plugins.environments.repository.baselines:baselines"),
    fork="native",
    names_states=True,
    info=("won", "changed"),
    says_won=True,
    splits=SPLITS,
    pool=pool,
    summary="a small generated package with failing tests, to be mended in a workspace and judged by hidden tests",
    source="functions, tests and bugs are generated here",
)


@hookimpl
def hier_environments() -> EnvironmentSpec:
    return SPEC
