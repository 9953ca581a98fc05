"""The methods of the lab: an estimator with its options, a shape of rollouts, and a loss."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from verl_hier.credit import Credit, turn_gae
from verl_hier.credit.estimate import estimate
from verl_hier.errors import HierError
from verl_hier.graph.turn_table import TurnTable
from verl_hier.host.manager import PluginHost
from verl_hier.host.options import build_options
from verl_hier.host.specs import EstimatorSpec
from verl_hier.lab.rollouts import CHAINS, Shape
from verl_hier.lab.update import Loss

NESTED = Shape(4, {0: 2})
"""Four plans, each of which is executed twice."""
TREE = Shape(2, {0: 2, 1: 2})
"""Two trees that branch after their first two turns."""
COLUMNS = frozenset(
    {
        *("group", "episode", "agent", "role", "level", "turn", "row", "segment", "plan", "parent", "depth", "leaves"),
        *("reward", "return", "done", "truncated", "valid", "complete", "trained", "n_tokens", "n_prompt", "anchor"),
        *("entropy", "format", "value", "value_low", "value_high", "q1", "q2", "v1", "v2"),
        *(f"tokens.{name}" for name in ("turn", "logprob", "entropy", "value", "subgoal", "switch", "action")),
        *(f"episodes.{name}" for name in ("group", "return", "success", "leaf", "tree", "trained", "withheld")),
        *(f"episodes.{name}" for name in ("turns", "task", "source")),
    }
)
"""Columns that the worlds fill."""
GAE_DECAY = 0.95
"""Of the reference `gae`."""
REFERENCES: Mapping[str, Callable[[TurnTable], Credit]] = {
    "reinforce": lambda table: Credit(np.asarray(table.episodes["return"])[table["episode"]]),
    "exact_critic": lambda table: Credit(np.asarray(table["q1"]) - np.asarray(table["v1"])),
    "gae": lambda table: Credit(turn_gae(table, table["value"], 1.0, GAE_DECAY)[0]),
}
"""What no plugin is needed for: the return of the episode, the advantage of a critic that errs nowhere, and GAE with it
over all turns."""
PLANS = frozenset({"himac", "metaagent_x", "dual_loop", "coda_peco"})
"""Estimators that compare the executions of a plan with each other."""
TREES = frozenset({"arpo", "aepo", "tree_grpo", "branpo"})
"""Estimators for trees that work on chains too."""


@dataclass(frozen=True)
class Method:
    """One way to learn.

    Attributes:
        name: as the command line says it.
        credit: from a turn table.
        shape: which episodes a task has.
        loss: the policy loss.
    """

    name: str
    credit: Callable[[TurnTable], Credit]
    shape: Shape = CHAINS
    loss: Loss = field(default_factory=Loss)


def method(name: str, host: PluginHost | None = None, options: Mapping[str, Any] | None = None) -> Method:
    """A method by the name of an estimator or of a reference, with the shape of rollouts that it is made for.

    Args:
        name: `grpo`, or `grpo@tree` for another shape: `chains`, `nested` or `tree`.
        host: where the estimator is registered; the built-in plugins when omitted.
        options: of the estimator, over its own defaults.

    Raises:
        HierError: for an unknown estimator or shape, or one that needs a column which no world fills.
    """
    base, _, wanted = name.partition("@")
    shapes = {"chains": CHAINS, "nested": NESTED, "tree": TREE}
    if wanted and wanted not in shapes:
        raise HierError(f"--methods {name}: the shape must be one of {', '.join(shapes)}.")
    if base in REFERENCES:
        return Method(name, REFERENCES[base], shapes.get(wanted, CHAINS))
    spec = (host or PluginHost.load({"builtin": True}, "estimator")).spec("estimator", base)
    assert isinstance(spec, EstimatorSpec)
    missing = unfed(spec)
    if missing:
        raise HierError(f"--methods {name}: no world of the lab fills the column {missing[0]!r}, which it needs.")
    built = build_options(spec, dict(options or {}))
    shape = shapes[wanted] if wanted else shape_of(spec)
    return Method(name, partial(_credit, spec, built), shape)


def _credit(spec: EstimatorSpec, options: Any, table: TurnTable) -> Credit:
    return estimate(spec, table, options)


def unfed(spec: EstimatorSpec) -> list[str]:
    """Columns that an estimator needs and no world fills."""
    return [column for column in spec.requires if column not in COLUMNS]


def shape_of(spec: EstimatorSpec) -> Shape:
    """The shape of rollouts that an estimator is made for."""
    if spec.needs_tree or spec.name in TREES:
        return TREE
    return NESTED if spec.name in PLANS else CHAINS
