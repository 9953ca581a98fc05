"""Reproduce a described bug by a failing test, verified in stages; docs/environments/bug_reproduction.md.

A harmless form of what CVE2PoC's dual loop works on: a plan, an attempt, and checks that say which of the two failed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from verl_hier_plugins.bug_reproduction.options import BugReproductionOptions

from verl_hier.hookspecs import hookimpl
from verl_hier.specs import EnvironmentSpec


def _build(options: BugReproductionOptions) -> Any:
    from verl_hier_plugins.bug_reproduction.environment import build

    return build(options)


def _tasks(options: BugReproductionOptions, split: str) -> list[dict[str, Any]]:
    from verl_hier_plugins.bug_reproduction.tasks import tasks

    return tasks(options, split)


SPEC = EnvironmentSpec(
    name="bug_reproduction",
    factory=_build,
    options=BugReproductionOptions,
    tasks=_tasks,
    can_fork=True,
    summary="write a test that shows a described bug of a small generated function, verified in stages",
    source="functions and bugs are generated here; staged checks after CVE2PoC's loop",
    doc="environments/bug_reproduction.md",
)


@hookimpl
def hier_environments() -> Iterable[EnvironmentSpec]:
    """The one environment of this plugin."""
    return [SPEC]
