"""ALFWorld: household tasks in text, on the real engine, with generated worlds or ALFWorld's own data set.

Paper: https://arxiv.org/abs/2010.03768. Doc page: docs/environments/alfworld.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from verl_hier_plugins.alfworld.options import AlfworldOptions

from verl_hier.hookspecs import hookimpl
from verl_hier.specs import EnvironmentSpec


def _build(options: AlfworldOptions) -> Any:
    from verl_hier_plugins.alfworld.environment import build

    return build(options)


def _tasks(options: AlfworldOptions, split: str) -> list[dict[str, Any]]:
    from verl_hier_plugins.alfworld.tasks import tasks

    return tasks(options, split)


SPEC = EnvironmentSpec(
    name="alfworld",
    factory=_build,
    options=AlfworldOptions,
    tasks=_tasks,
    can_fork=True,
    summary="ALFWorld's household tasks: generated worlds without a download, or the data set",
    source="arXiv 2010.03768; engine of alfworld 0.4.2 and textworld 1.7",
    doc="environments/alfworld.md",
    extra="alfworld",
    modules=("alfworld", "textworld"),
)


@hookimpl
def hier_environments() -> Iterable[EnvironmentSpec]:
    """The one environment of this plugin."""
    return [SPEC]
