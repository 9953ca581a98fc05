"""Reasoning questions with a sandboxed Python tool; docs/environments/python_tool.md.

The tool's papers: ToRA, https://arxiv.org/abs/2309.17452, and ToRL, https://arxiv.org/abs/2503.23383. Questions:
reasoning-gym, https://arxiv.org/abs/2505.24760, generated arithmetic, or a GSM8K-style file.
"""

from verl_hier.environments.base import FINAL_ANSWER
from verl_hier.environments.splits import SPLITS, pool
from verl_hier.hookspecs import hookimpl
from verl_hier.host.lazy import lazy
from verl_hier.host.specs import EnvironmentSpec
from verl_hier_plugins.environments.python_tool.options import PythonToolOptions

SPEC = EnvironmentSpec(
    "python_tool",
    lazy("verl_hier_plugins.environments.python_tool.environment:build"),
    PythonToolOptions,
    tasks=lazy("verl_hier_plugins.environments.python_tool.tasks:tasks"),
    baselines=lazy("verl_hier_plugins.environments.python_tool.baselines:baselines"),
    fork="native",
    names_states=True,
    info=("won", "score", "calls"),
    says_won=True,
    provides=lambda options: (FINAL_ANSWER,) * (options.chain == 1),
    splits=SPLITS,
    pool=pool,
    summary="arithmetic and logic questions with a sandboxed Python tool: generated, reasoning-gym's, or from a file",
    source="reasoning-gym 0.1.25 (arXiv 2505.24760) and its scorers; generated arithmetic",
    extra="reasoning",
)


@hookimpl
def hier_environments() -> EnvironmentSpec:
    return SPEC
