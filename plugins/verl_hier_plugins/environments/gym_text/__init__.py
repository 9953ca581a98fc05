"""Any world with gymnasium's `reset` and `step`, named by its import path; docs/environments/gym_text.md."""

from verl_hier.environments.splits import SPLITS, pool
from verl_hier.hookspecs import hookimpl
from verl_hier.host.lazy import lazy
from verl_hier.host.specs import EnvironmentSpec
from verl_hier_plugins.environments.gym_text.options import GymTextOptions

SPEC = EnvironmentSpec(
    "gym_text",
    lazy("verl_hier_plugins.environments.gym_text.environment:build"),
    GymTextOptions,
    tasks=lazy("verl_hier_plugins.environments.gym_text.environment:tasks"),
    fork="native",
    # Both depend on the view.
    names_states=None,
    info=None,
    says_won=True,
    splits=SPLITS,
    pool=pool,
    summary="any world with gymnasium's `reset` and `step`, named by its import path",
    source="the interface of gymnasium 1.x",
)


@hookimpl
def hier_environments() -> EnvironmentSpec:
    return SPEC
