"""MARS², solutions against what they refine and their siblings (arXiv 2602.07848), docs/methods/mars2.md."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from verl_hier.credit import (
    Floats,
    Ints,
    Normalisation,
    group_advantage,
    group_ids,
    group_sum,
    trained_only,
)
from verl_hier.credit.trees import depths, run_starts
from verl_hier.graph.turn_table import TurnTable
from verl_hier.hookspecs import hookimpl
from verl_hier.host.constraints import NonNegative, ZeroToOne
from verl_hier.host.specs import EstimatorSpec

KERNELS: dict[str, Normalisation] = {
    "group_norm": {"centre": "mean", "scale": "sample", "eps": 1e-9, "singleton": "zero"},
    "rloo": {"centre": "leave_one_out", "scale": "none", "singleton": "zero"},
    "mean": {"centre": "mean", "scale": "none", "singleton": "zero"},
}


@dataclass(frozen=True)
class MARS2Options:
    """Defaults are the released function's."""

    gamma: NonNegative = 0.3
    """Factor of the difference between a solution's reward and its baseline."""
    mix: ZeroToOne = 0.5
    """Weight of the mean of the other refinements in that baseline (λ); the rest is what they refine."""
    advantage: Literal["group_norm", "rloo", "mean"] = "group_norm"
    """What is made of the shaped rewards of a tree: z-score, minus the mean of the others, or minus the mean."""


def advantage(table: TurnTable, options: MARS2Options) -> Floats:
    """(T,) shaped reward of the solution that the turn belongs to, among those of the task."""
    start = run_starts(table["parent"], table["segment"])
    solution = start == np.arange(len(table))
    reward = group_sum(table["reward"], start, len(table))
    shaped = shaped_rewards(table, reward, start, options)
    counted = solution & np.asarray(table["trained"], bool)
    kernel = KERNELS[options.advantage]
    found = group_advantage(shaped, group_ids(table["group"]), where=counted, **kernel)
    return trained_only(table, found[start])


def shaped_rewards(table: TurnTable, reward: Floats, start: Ints, options: MARS2Options) -> Floats:
    """(T,) at the first turn of each solution its reward plus gamma times what it is above its baseline.

    The baseline mixes the shaped reward of the solution that it refines and the mean reward of the other refinements of
    that one; where one of them is missing, it is the other one, and without both the reward is left as it is.

    Args:
        table: the turn table.
        reward: (T,) reward of each solution at its first turn.
        start: (T,) first turn of each turn's solution.
        options: gamma and mix.
    """
    solution = np.flatnonzero(start == np.arange(len(table)))
    up = np.asarray(table["parent"])[solution]
    refined = np.where(up >= 0, start[up], -1)
    siblings = group_ids(table["group"][solution], refined)
    count = np.bincount(siblings)[siblings] - 1
    total = group_sum(reward[solution], siblings)[siblings] - reward[solution]
    others = np.divide(total, count, out=np.zeros(len(solution)), where=count > 0)
    shaped, depth = np.array(reward, np.float64), depths(table["parent"])[solution]
    # A refinement is compared with the shaped reward of what it refines, so the tree is walked from its first nodes.
    for level in np.unique(depth):
        here = depth == level
        places, own, alone = solution[here], others[here], count[here] < 1
        above = refined[here]
        first = above < 0
        parent = np.where(first, 0.0, shaped[np.maximum(above, 0)])
        mixed = (1 - options.mix) * parent + options.mix * own
        base = np.where(first, own, np.where(alone, parent, mixed))
        shaped[places] += np.where(first & alone, 0.0, options.gamma * (reward[places] - base))
    return shaped


@hookimpl
def hier_estimators() -> EstimatorSpec:
    return EstimatorSpec(
        "mars2",
        advantage,
        MARS2Options,
        summary="reward of a solution, shaped by what it refines and by the other refinements, in its tree",
        source="arXiv 2602.07848; TsinghuaC3I/MARTI ab_mcts_processor.py::tree_reward_shaping_unified",
        requires=("group", "parent", "segment", "reward", "trained"),
        confidence="A",
    )
