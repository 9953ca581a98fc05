"""MAGRPO, joint actions of several agents in one context (arXiv 2508.04652), docs/methods/magrpo.md."""

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
    optional,
    trained_only,
)
from verl_hier.credit.trees import levels_up, path_sum, run_starts
from verl_hier.graph.turn_table import TurnTable
from verl_hier.hookspecs import hookimpl
from verl_hier.host.constraints import ZeroToOne
from verl_hier.host.specs import EstimatorSpec

__all__ = ["JointSteps", "MAGRPOOptions", "advantage", "joint_returns"]
KERNELS: dict[str, Normalisation] = {
    "mean": {"centre": "mean", "scale": "none", "singleton": "zero"},
    "rloo": {"centre": "leave_one_out", "scale": "none", "singleton": "zero"},
    "raw": {"centre": "none", "scale": "none", "singleton": "zero"},
}


@dataclass(frozen=True)
class MAGRPOOptions:
    """Defaults are the released code's."""

    discount: ZeroToOne = 0.9
    """Factor of the mean return of the joint actions that follow."""
    baseline: Literal["mean", "rloo", "max", "raw"] = "mean"
    """What is taken from the return of a completion: the mean of all completions of its agent in the same context, the
    mean of the others, the highest one, or nothing."""


def advantage(table: TurnTable, options: MAGRPOOptions) -> Floats:
    """(T,) return of the joint actions that a turn is part of, among the completions of its agent in one context."""
    steps = JointSteps(table)
    returns = joint_returns(table, steps, options.discount)
    agent, owner = np.asarray(table["agent"]), group_ids(table["group"])
    # A completion that is part of several joint actions has the sum of their returns.
    context = group_ids(owner, steps.before)
    completion = np.asarray(optional(table, "completion", np.full(len(table), np.nan)), np.float64)
    named = np.isfinite(completion)
    keys = group_ids(context, agent, np.where(named, completion, -1), np.where(named, -1, np.arange(len(table))))
    total = group_sum(returns[steps.pair_end], keys[steps.pair_turn], int(keys.max(initial=-1)) + 1)
    first = np.unique(keys, return_index=True)[1]
    one = np.zeros(len(table), bool)
    one[first] = True
    trained = np.zeros(len(total), bool)
    np.logical_or.at(trained, keys, np.asarray(table["trained"], bool))
    scores, groups = total[keys], group_ids(context, agent)
    counted = one & trained[keys]
    if options.baseline == "max":
        best = np.full(int(groups.max(initial=-1)) + 1, -np.inf)
        np.maximum.at(best, groups[counted], scores[counted])
        values = np.where(counted, scores - np.where(counted, best[groups], 0.0), 0.0)
    else:
        values = group_advantage(scores, groups, where=counted, **KERNELS[options.baseline])
    return trained_only(table, values[first][keys])


class JointSteps:
    """The joint actions of a table: the turns of one step on a way through the tree.

    Attributes:
        before: (T,) turn in front of each turn's step, -1 for the first step.
        ends: turns that end a joint action.
        pair_turn, pair_end: (P,) each turn with the end of each joint action that it is part of.
    """

    def __init__(self, table: TurnTable) -> None:
        parent, segment = np.asarray(table["parent"]), np.asarray(table["segment"])
        self.start = run_starts(parent, segment)
        self.before: Ints = parent[self.start]
        episode, turn = table.step_episode, table.step_turn
        goes_on = np.zeros(len(turn), bool)
        goes_on[:-1] = (episode[1:] == episode[:-1]) & (self.start[turn[1:]] == self.start[turn[:-1]])
        last = np.flatnonzero(~goes_on)
        end = turn[last[np.searchsorted(last, np.arange(len(turn)))]]
        pairs = np.unique(np.stack([turn, end], 1), axis=0) if len(turn) else np.zeros((0, 2), np.int64)
        self.pair_turn, self.pair_end = pairs[:, 0], pairs[:, 1]
        self.ends = np.unique(self.pair_end)


def joint_returns(table: TurnTable, steps: JointSteps, discount: float) -> Floats:
    """(T,) at the end of each joint action: its reward, and the discounted mean return of those that follow it."""
    parent = np.asarray(table["parent"])
    along = path_sum(parent, table["reward"])
    reward = along - np.where(steps.before >= 0, along[np.maximum(steps.before, 0)], 0.0)
    place = np.full(len(table) + 1, -1)
    place[steps.ends] = np.arange(len(steps.ends))
    above = place[steps.before[steps.ends]]
    found, count = reward[steps.ends], np.bincount(above[above >= 0], minlength=len(steps.ends))
    for ends in levels_up(above):
        np.add.at(found, above[ends], discount * found[ends] / count[above[ends]])
    returns = np.zeros(len(table))
    returns[steps.ends] = found
    return returns


@hookimpl
def hier_estimators() -> EstimatorSpec:
    return EstimatorSpec(
        "magrpo",
        advantage,
        MAGRPOOptions,
        summary="return of joint actions, among the completions of one agent in the same joint context",
        source="arXiv 2508.04652; OpenMLRL/CoMLRL comlrl/trainers/reinforce/magrpo.py",
        requires=("group", "agent", "parent", "segment", "reward", "trained"),
        confidence="A",
    )
