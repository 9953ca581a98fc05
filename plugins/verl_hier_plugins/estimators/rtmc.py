"""RTMC, values of states and actions from the rollouts of a task (arXiv 2604.11037), docs/methods/rtmc.md."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from verl_hier.credit import (
    Floats,
    Ints,
    discounted_sum,
    group_ids,
    group_mean,
    group_sum,
    shift_back,
    step_links,
    step_mean,
    trained_only,
)
from verl_hier.graph.turn_table import TurnTable
from verl_hier.hookspecs import hookimpl
from verl_hier.host.constraints import NonNegative
from verl_hier.host.specs import EstimatorSpec


@dataclass(frozen=True)
class RTMCOptions:
    """The paper's form; see the page for what is known of its settings."""

    gamma: float = 1.0
    """Discount of the reward-to-go a turn."""
    shrink: NonNegative = 0.0
    """Visits with the mean of the task that a state's value is mixed with, so that rare states say less."""


def advantage(table: TurnTable, options: RTMCOptions) -> Floats:
    """(T,) Q(s, a) - V(s): mean reward-to-go of the episodes of the task that took this action in this state, minus
    that of all that were in it. An episode counts by its first visit. Turns without an anchor get 0."""
    turn, links = table.step_turn, step_links(table)
    reward = np.asarray(table["reward"], np.float64)[turn]
    anchor = np.asarray(table["anchor"])[turn]
    # What an action does tells actions apart: the state it leads to, or an end with or without a reward.
    effect = shift_back(anchor, links, np.where(reward > 0, -3, -2)).astype(np.int64)
    state = group_ids(np.asarray(table["group"])[turn], anchor)
    action = group_ids(state, effect)
    trained = np.asarray(table["trained"], bool)[turn]
    returns = discounted_sum(reward, links, options.gamma)
    seen, taken = (first_visits(table.step_episode, keys) & trained for keys in (state, action))
    value = group_mean(returns, state, seen)[state]
    if options.shrink:
        task = np.asarray(table["group"])[turn]
        keys = group_ids(task)
        visits = group_sum(seen, state)[state]
        prior = group_mean(returns, keys, seen)[keys]
        value = (visits * value + options.shrink * prior) / (visits + options.shrink)
    steps = np.where(anchor >= 0, group_mean(returns, action, taken)[action] - value, 0.0)
    return trained_only(table, step_mean(table, steps))


def first_visits(episode: Ints, keys: Ints) -> np.ndarray:
    """(S,) bool, the first step of each episode at each key; steps are in time order inside an episode."""
    first = np.zeros(len(keys), np.bool_)
    first[np.unique(group_ids(episode, keys), return_index=True)[1]] = True
    return first


@hookimpl
def hier_estimators() -> EstimatorSpec:
    return EstimatorSpec(
        "rtmc",
        advantage,
        RTMCOptions,
        summary="value of an action in its state minus the value of the state, over the rollouts of the task",
        source="arXiv 2604.11037 (formulas quoted in a later paper and in ports)",
        requires=("group", "anchor", "reward", "trained"),
        confidence="B",
    )
