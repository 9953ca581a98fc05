"""TextWorld: generated text adventures with quests, in the words of the compiled game or in few of our own.

Paper: https://arxiv.org/abs/1806.11532. Doc page: docs/environments/textworld.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from verl_hier_plugins.textworld.options import TextworldOptions

from verl_hier.hookspecs import hookimpl
from verl_hier.specs import EnvironmentSpec


def _build(options: TextworldOptions) -> Any:
    from verl_hier_plugins.textworld.environment import build

    return build(options)


def _tasks(options: TextworldOptions, split: str) -> list[dict[str, Any]]:
    from verl_hier_plugins.textworld.tasks import tasks

    return tasks(options, split)


SPEC = EnvironmentSpec(
    name="textworld",
    factory=_build,
    options=TextworldOptions,
    tasks=_tasks,
    can_fork=True,
    summary="TextWorld's adventures: generated from a seed, or game files of your own",
    source="arXiv 1806.11532; generator, logic and Inform 7 games of textworld 1.7",
    doc="environments/textworld.md",
    extra="textworld",
    modules=("textworld",),
)


@hookimpl
def hier_environments() -> Iterable[EnvironmentSpec]:
    """The one environment of this plugin."""
    return [SPEC]
