"""MCP: the tools of any server that speaks the Model Context Protocol, over stdio or streamable HTTP.

Doc page: docs/environments/mcp.md.
"""

from verl_hier.environments.splits import SPLITS, pool
from verl_hier.hookspecs import hookimpl
from verl_hier.host.lazy import lazy
from verl_hier.host.specs import EnvironmentSpec
from verl_hier_plugins.environments.mcp.options import McpOptions

SPEC = EnvironmentSpec(
    "mcp",
    lazy("verl_hier_plugins.environments.mcp.environment:service"),
    McpOptions,
    tasks=lazy("verl_hier_plugins.environments.mcp.tasks:tasks"),
    fork="replay",
    names_states=True,
    info=("won", "score", "answers", "commands"),
    says_won=True,
    splits=SPLITS,
    pool=pool,
    asynchronous=True,
    secrets=("headers_env", "secrets"),
    summary="the tools of a server that speaks the Model Context Protocol, over stdio or streamable HTTP",
    source="Model Context Protocol, by its Python SDK",
    extra="mcp",
    modules=("mcp",),
)


@hookimpl
def hier_environments() -> EnvironmentSpec:
    return SPEC
