"""Gateway: the policy as an OpenAI-compatible endpoint for agents that know nothing of verl-hier.

Doc page: docs/environments/gateway.md.
"""

from collections.abc import Iterator

from verl_hier.environments.splits import SPLITS, pool
from verl_hier.hookspecs import hookimpl
from verl_hier.host.lazy import lazy
from verl_hier.host.specs import EnvironmentSpec
from verl_hier_plugins.environments.gateway.options import GatewayOptions


def notes(options: GatewayOptions) -> Iterator[str]:
    """What the agent is told that decides about its score."""
    shown = [name for name in ("answer", "answers") if name not in options.hidden]
    if shown:
        yield (
            f"hier.environment.hidden: the agent is given the task's {' and '.join(map(repr, shown))}, by which its "
            "result is scored; add them, unless a function of your own scores it."
        )


SPEC = EnvironmentSpec(
    "gateway",
    lazy("verl_hier_plugins.environments.gateway.environment:service"),
    GatewayOptions,
    tasks=lazy("verl_hier_plugins.environments.gateway.tasks:tasks"),
    fork="recorded",
    names_states=True,
    info=("won", "score", "request"),
    says_won=True,
    splits=SPLITS,
    pool=pool,
    asynchronous=True,
    secrets=("secrets",),
    outside=("agent", "command", "python", "folder", "scorer", "data_path", "validation_path"),
    read_info=("request",),
    notes=notes,
    scoring=("scorer", "won_at"),
    summary="an agent program of any framework, to which the policy is an OpenAI-compatible endpoint",
    source="OpenAI's chat completions and responses, Anthropic's messages",
    extra="gateway",
    modules=("aiohttp",),
)


@hookimpl
def hier_environments() -> EnvironmentSpec:
    return SPEC
