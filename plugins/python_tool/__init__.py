"""Reasoning questions with a sandboxed Python tool; docs/environments/python_tool.md.

The tool's papers: ToRA, https://arxiv.org/abs/2309.17452, and ToRL, https://arxiv.org/abs/2503.23383. Questions:
reasoning-gym, https://arxiv.org/abs/2505.24760, generated arithmetic, or a GSM8K-style file.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from verl_hier_plugins.python_tool.options import PythonToolOptions

from verl_hier.hookspecs import hookimpl
from verl_hier.specs import EnvironmentSpec


def _build(options: PythonToolOptions) -> Any:
    from verl_hier_plugins.python_tool.environment import build

    return build(options)


def _tasks(options: PythonToolOptions, split: str) -> list[dict[str, Any]]:
    from verl_hier_plugins.python_tool.tasks import tasks

    return tasks(options, split)


SPEC = EnvironmentSpec(
    name="python_tool",
    factory=_build,
    options=PythonToolOptions,
    tasks=_tasks,
    can_fork=True,
    summary="arithmetic and logic questions with a sandboxed Python tool: generated, reasoning-gym's, or from a file",
    source="reasoning-gym 0.1.25 (arXiv 2505.24760) and its scorers; generated arithmetic",
    doc="environments/python_tool.md",
    extra="reasoning",
)


@hookimpl
def hier_environments() -> Iterable[EnvironmentSpec]:
    """The one environment of this plugin."""
    return [SPEC]
