"""The tools of a verl recipe, `BaseTool`s and function tools, as an environment; docs/environments/verl_tools.md."""

from verl_hier.hookspecs import hookimpl
from verl_hier.host.lazy import lazy
from verl_hier.host.specs import EnvironmentSpec
from verl_hier_plugins.environments.verl_tools.options import VerlToolsOptions

SPEC = EnvironmentSpec(
    "verl_tools",
    lazy("verl_hier_plugins.environments.verl_tools.environment:VerlToolsEnvironment"),
    VerlToolsOptions,
    fork="recorded",
    names_states=True,
    info=("commands",),
    says_won=False,
    asynchronous=True,
    in_worker=True,
    summary="verl's own tools, from the tool_config_path and function_tool_path of an existing recipe",
    source="verl/experimental/agent_loop/tool_agent_loop.py",
)


@hookimpl
def hier_environments() -> EnvironmentSpec:
    return SPEC
