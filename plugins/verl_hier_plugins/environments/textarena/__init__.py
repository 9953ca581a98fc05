"""TextArena: puzzles for one player and games for several, as one environment that says whose turn it is.

Paper: https://arxiv.org/abs/2504.11442. Doc page: docs/environments/textarena.md.
"""

from typing import Any

from verl_hier.environments.splits import SPLITS, pool
from verl_hier.hookspecs import hookimpl
from verl_hier.host.lazy import lazy
from verl_hier.host.specs import EnvironmentSpec
from verl_hier_plugins.environments.textarena.options import TextarenaOptions

SPEC = EnvironmentSpec(
    "textarena",
    lazy("verl_hier_plugins.environments.textarena.environment:TextarenaEnvironment"),
    TextarenaOptions,
    tasks=lazy("verl_hier_plugins.environments.textarena.tasks:tasks"),
    baselines=lazy("verl_hier_plugins.environments.textarena.baselines:baselines"),
    fork="native",
    names_states=True,
    # A reset names more where the seat is fixed.
    info=None,
    says_won=True,
    splits=SPLITS,
    pool=pool,
    summary="TextArena's puzzles and games: alone, against a random opponent, or every seat a policy",
    source="arXiv 2504.11442; games of textarena 0.7.4",
    extra="textarena",
    modules=("textarena",),
)


@hookimpl
def hier_environments() -> EnvironmentSpec:
    return SPEC


@hookimpl
def hier_render(task: dict[str, Any], path: list[dict[str, Any]]) -> str | None:
    from verl_hier_plugins.environments.textarena.board import board

    return board(task, path)
