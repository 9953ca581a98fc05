"""HGPO, hierarchies of history groups (verl-agent), docs/methods/hgpo.md."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from verl_hier.credit import (
    Bools,
    Floats,
    Ints,
    Scale,
    format_penalty,
    group_advantage,
    group_ids,
    return_advantage,
    rewards_to_go,
    trained_only,
)
from verl_hier.graph.turn_table import TurnTable
from verl_hier.hookspecs import hookimpl
from verl_hier.host.constraints import CountOrZero, NonNegative, ZeroToOne
from verl_hier.host.specs import EstimatorSpec

_NOISE = 1e-9


@dataclass(frozen=True)
class HGPOOptions:
    """Defaults are the released recipe's."""

    history: CountOrZero = 2
    """Past states in the largest context; 0 groups by the current state alone."""
    alpha: NonNegative = 1.0
    """Exponent of the weights: larger contexts get (k + 1) ** alpha."""
    gamma: ZeroToOne = 0.95
    """Discount of the reward-to-go."""
    norm: Literal["mean_norm", "mean_std_norm"] = "mean_std_norm"
    """Whether a group divides by its population standard deviation."""
    base_group: bool = False
    """Whether the episode advantage joins the levels with weight 1."""
    format_penalty: NonNegative = 0.0
    """Taken from the score of a turn whose format is wrong (`format` is 0, or not `valid` where no worker fills that
    column), on every level; neither the return nor the reward-to-go of another turn changes."""
    eps: NonNegative = 1e-6
    """Added to the standard deviation and to the sum of the weights."""


def advantage(table: TurnTable, options: HGPOOptions) -> Floats:
    """(T,) weighted mean of the advantages in the groups of equal last 1, 2 … states; groups of one do not count."""
    scaled = options.norm == "mean_std_norm"
    total, weight = np.zeros(len(table)), np.full(len(table), options.eps)
    if options.base_group:
        sample: Scale = "sample" if scaled else "none"
        episode = return_advantage(table, options.format_penalty, scale=sample, weight_by="turn", eps=options.eps)
        _join(total, weight, episode, 1.0)
    scale: Scale = "population" if scaled else "none"
    returns = rewards_to_go(table, options.gamma) - format_penalty(table, options.format_penalty)
    for size, (keys, member) in enumerate(histories(table, options.history), start=1):
        values = group_advantage(returns, keys, where=member, scale=scale, eps=options.eps, singleton="zero")
        _join(total, weight, values, (size + 1.0) ** options.alpha)
    return trained_only(table, total / weight)


def _join(total: Floats, weight: Floats, values: Floats, factor: float) -> None:
    """Add a level in place; it counts for the turns to which it gives credit."""
    total += factor * values
    weight += factor * (np.abs(values) > _NOISE)


def histories(table: TurnTable, past: int) -> list[tuple[Ints, Bools]]:
    """For 0..past states before the current one: group numbers (T,) and which turns are members (T,).

    A turn with fewer predecessors, without a named state or not trained is no member.
    """
    anchor, parent = np.asarray(table["anchor"]), np.asarray(table["parent"])
    keys = group_ids(table["group"], anchor)
    member = np.asarray(table["trained"], bool) & (anchor >= 0)
    found, before = [(keys, member)], parent
    for _ in range(past):
        there = np.maximum(before, 0)
        member = member & (before >= 0) & (anchor[there] >= 0)
        keys = group_ids(keys, np.where(before >= 0, anchor[there], -1))
        before = np.where(before >= 0, parent[there], -1)
        found.append((keys, member))
    return found


@hookimpl
def hier_estimators() -> EstimatorSpec:
    return EstimatorSpec(
        "hgpo",
        advantage,
        HGPOOptions,
        summary="advantages among turns with equal last 1, 2 … states, larger contexts weigh more",
        source="verl-agent recipe/hgpo/core_hgpo.py",
        requires=("group", "anchor", "parent", "reward", "trained"),
        confidence="A",
    )
