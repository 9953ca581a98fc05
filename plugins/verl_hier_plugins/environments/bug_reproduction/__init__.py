"""Reproduce a described bug by a failing test, verified in stages; docs/environments/bug_reproduction.md.

A harmless form of what CVE2PoC's dual loop works on: a plan, an attempt, and checks that say which of the two failed.
"""

from verl_hier.environments.splits import SPLITS, pool
from verl_hier.hookspecs import hookimpl
from verl_hier.host.lazy import lazy
from verl_hier.host.specs import EnvironmentSpec
from verl_hier_plugins.environments.bug_reproduction.options import BugReproductionOptions

SPEC = EnvironmentSpec(
    "bug_reproduction",
    lazy("verl_hier_plugins.environments.bug_reproduction.environment:build"),
    BugReproductionOptions,
    tasks=lazy("verl_hier_plugins.environments.bug_reproduction.tasks:tasks"),
    baselines=lazy("verl_hier_plugins.environments.bug_reproduction.baselines:baselines"),
    fork="native",
    names_states=True,
    info=("won", "score", "tests"),
    says_won=True,
    splits=SPLITS,
    pool=pool,
    summary="write a test that shows a described bug of a small generated function, verified in stages",
    source="functions and bugs are generated here; staged checks after CVE2PoC's loop",
)


@hookimpl
def hier_environments() -> EnvironmentSpec:
    return SPEC
