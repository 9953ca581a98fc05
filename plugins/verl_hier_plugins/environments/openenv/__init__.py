"""OpenEnv: environments behind a server that speaks OpenEnv's websocket protocol, without its package.

Doc page: docs/environments/openenv.md.
"""

from verl_hier.environments.splits import SPLITS, pool
from verl_hier.hookspecs import hookimpl
from verl_hier.host.lazy import lazy
from verl_hier.host.specs import EnvironmentSpec
from verl_hier_plugins.environments.openenv.options import OpenenvOptions

SPEC = EnvironmentSpec(
    "openenv",
    lazy("verl_hier_plugins.environments.openenv.environment:service"),
    OpenenvOptions,
    tasks=lazy("verl_hier_plugins.environments.openenv.tasks:tasks"),
    fork="replay",
    names_states=True,
    info=("won", "score", "observation"),
    says_won=True,
    splits=SPLITS,
    pool=pool,
    asynchronous=True,
    secrets=("headers_env",),
    summary="environments behind a server that speaks OpenEnv's websocket protocol",
    source="the websocket protocol of OpenEnv 0.10",
    extra="openenv",
    modules=("aiohttp",),
)


@hookimpl
def hier_environments() -> EnvironmentSpec:
    return SPEC
