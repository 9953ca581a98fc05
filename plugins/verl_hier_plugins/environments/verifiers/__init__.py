"""verifiers: environments of the package verifiers (its v1 interface), without its harnesses and model clients.

Doc page: docs/environments/verifiers.md.
"""

from verl_hier.environments.splits import SPLITS, pool
from verl_hier.hookspecs import hookimpl
from verl_hier.host.lazy import lazy
from verl_hier.host.specs import EnvironmentSpec
from verl_hier_plugins.environments.verifiers.options import VerifiersOptions

SPEC = EnvironmentSpec(
    "verifiers",
    lazy("verl_hier_plugins.environments.verifiers.environment:service"),
    VerifiersOptions,
    tasks=lazy("verl_hier_plugins.environments.verifiers.tasks:tasks"),
    fork="replay",
    names_states=True,
    info=("won", "score", "player", "players", "agent"),
    says_won=True,
    splits=SPLITS,
    pool=pool,
    asynchronous=True,
    secrets=("secrets",),
    summary="environments of the package verifiers, in an interpreter of their own",
    source="verifiers 0.4, its v1 interface",
    modules=("verifiers",),
)


@hookimpl
def hier_environments() -> EnvironmentSpec:
    return SPEC
