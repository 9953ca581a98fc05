"""Tasks from verl's own data set, answered once and scored by verl's reward function; docs/environments/prompt.md."""

from verl_hier_plugins.prompt.environment import PromptEnvironment

from verl_hier.hookspecs import hookimpl
from verl_hier.specs import EnvironmentSpec


@hookimpl
def hier_environments() -> list[EnvironmentSpec]:
    """The `prompt` environment."""
    return [
        EnvironmentSpec(
            name="prompt",
            factory=PromptEnvironment,
            summary="verl's data set and reward function: one answer a task",
            source="verl/experimental/agent_loop/single_turn_agent_loop.py",
            doc="environments/prompt.md",
            can_fork=True,
        )
    ]
