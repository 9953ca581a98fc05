"""verl-hier: hierarchical, tree-shaped and multi-agent RL as plugins beside stock verl.

Importing this package is cheap and touches neither verl nor torch; every heavy part is imported where it is used. What
notebooks and scripts need is here by name; docs/python.md explains it, and `__init__.pyi` has the types.
"""

import importlib

__version__ = "0.2.0"

_HOMES = {
    "compose": "verl_hier.ops.python",
    "train": "verl_hier.ops.python",
    "roll_out": "verl_hier.ops.python",
    "evaluate": "verl_hier.ops.python",
    "Evaluation": "verl_hier.ops.evaluation",
    "Run": "verl_hier.ops.runs",
    "Reward": "verl_hier.rollout.rewards",
    "RatedEpisode": "verl_hier.rollout.rewards",
    "RatedTurn": "verl_hier.rollout.rewards",
    "HierError": "verl_hier.errors",
}
"""Name to the module that defines it, which is imported when the name is first used."""
__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'verl_hier' has no attribute {name!r}")
    found = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
