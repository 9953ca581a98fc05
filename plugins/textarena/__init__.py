"""TextArena: puzzles for one player and games for several, as one environment that says whose turn it is.

Paper: https://arxiv.org/abs/2504.11442. Doc page: docs/environments/textarena.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from verl_hier_plugins.textarena.options import TextarenaOptions

from verl_hier.hookspecs import hookimpl
from verl_hier.specs import EnvironmentSpec


def _build(options: TextarenaOptions) -> Any:
    from verl_hier_plugins.textarena.environment import TextarenaEnvironment

    return TextarenaEnvironment(options)


def _tasks(options: TextarenaOptions, split: str) -> list[dict[str, Any]]:
    from verl_hier_plugins.textarena.tasks import tasks

    return tasks(options, split)


SPEC = EnvironmentSpec(
    name="textarena",
    factory=_build,
    options=TextarenaOptions,
    tasks=_tasks,
    can_fork=True,
    summary="TextArena's puzzles and games: alone, against a random opponent, or every seat a policy",
    source="arXiv 2504.11442; games of textarena 0.7.4",
    doc="environments/textarena.md",
    extra="textarena",
    modules=("textarena",),
)


@hookimpl
def hier_environments() -> Iterable[EnvironmentSpec]:
    """The one environment of this plugin."""
    return [SPEC]
