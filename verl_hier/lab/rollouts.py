"""Rollouts in a world of the lab, in arrays, and their turn table.

A batch plays several tasks; each begins in a state of its own. A shape says which episodes a task has: so many roots,
and after which turns each path goes on as several.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from verl_hier.credit import group_ids
from verl_hier.credit.tables import make_table
from verl_hier.graph.turn_table import TurnTable
from verl_hier.lab.world import World

Array = NDArray[Any]


@dataclass(frozen=True)
class Shape:
    """Which episodes each task has.

    Attributes:
        roots: first turns.
        branches: number of a turn to how many paths follow each turn of this number.
    """

    roots: int = 8
    branches: Mapping[int, int] = field(default_factory=dict)


CHAINS = Shape()
"""Eight independent episodes."""


@dataclass(frozen=True)
class Batch:
    """What was played; T turns, a turn that several episodes share once, parents before their children.

    Attributes:
        table: the turn table, in the order of the real path: by task, then by the episode that has made a turn.
        state: (T,) state before the turn.
        action: (T,) what was chosen.
        calls: turns that were sampled: T, and those of episodes that a sampler has given up.
    """

    table: TurnTable
    state: Array
    action: Array
    calls: int


def play(world: World, policy: Array, tasks: int, shape: Shape, rng: np.random.Generator) -> Batch:
    """Play a batch.

    Args:
        world: the world.
        policy: (S, A) probabilities.
        tasks: how many.
        shape: which episodes each of them has.
        rng: draws the start of each task, the actions and the moves, turn by turn for all paths at once.
    """
    begin = draw(np.tile(world.start, (tasks, 1)), rng)
    made = tasks * shape.roots
    here = {
        "made_by": np.arange(made),
        "group": np.repeat(np.arange(tasks), shape.roots),
        "state": np.repeat(begin, shape.roots),
        **{name: np.full(made, -1) for name in ("parent", "plan", "segment")},
    }
    turns: list[dict[str, Array]] = []
    count = 0
    for turn in range(world.horizon):
        if not len(here["state"]):
            break
        state = here["state"]
        action = draw(policy[state], rng)
        after = draw(world.moves[state, action], rng)
        number = count + np.arange(len(state))
        plans = world.plans[state]
        segment = here["segment"] + (world.begins[state] | (here["segment"] < 0))
        done = world.over[after]
        turns.append(
            {
                **here,
                "segment": segment,
                "action": action,
                "after": after,
                "turn": np.full(len(state), turn),
                "reward": world.reward[state, action],
                "done": done,
                "truncated": ~done & (turn == world.horizon - 1),
                "plan": np.where(plans, -1, here["plan"]),
            }
        )
        count += len(state)
        copies = shape.branches.get(turn, 1)
        goes_on = np.repeat(np.flatnonzero(~done), copies)
        forks = np.arange(len(goes_on)) % copies > 0
        here = {
            "made_by": np.where(forks, made - 1 + np.cumsum(forks), here["made_by"][goes_on]),
            "group": here["group"][goes_on],
            "state": after[goes_on],
            "parent": number[goes_on],
            "plan": np.where(plans, number, here["plan"])[goes_on],
            "segment": segment[goes_on],
        }
        made += int(forks.sum())
    columns = _in_order({name: np.concatenate([each[name] for each in turns]) for name in turns[0]})
    return Batch(table_of(world, policy, columns), columns["state"], columns["action"], count)


def _in_order(columns: Mapping[str, Array]) -> dict[str, Array]:
    """Turns by task, then by the episode that has made them.

    They are played by number, so that short episodes would end first, and an estimator that goes through the episodes
    in their order, such as RAE with its running mean, would compare long ones with short ones.
    """
    order = np.lexsort((columns["turn"], columns["made_by"], columns["group"]))
    place = np.empty(len(order) + 1, np.int64)
    place[order], place[-1] = np.arange(len(order)), -1  # the last one is for turns without a parent
    sorted_ = {name: column[order] for name, column in columns.items()}
    return {**sorted_, **{name: place[sorted_[name]] for name in ("parent", "plan")}}


def table_of(world: World, policy: Array, columns: Mapping[str, Array]) -> TurnTable:
    """The turn table of what was played, with the values of the exact critic.

    A turn is one token, with its log-prob and the entropy of the policy: a token of a subgoal where a planner acts,
    else one of an action. Every format is right. The critic's columns are `value`, for several heads `value_low` and
    `value_high`, and for double critics `q1`, `q2`, `v1` and `v2`: the exact values at the turn's number and state.
    """
    state = columns["state"]
    chance = policy[state]
    logs = np.log(np.where(chance > 0, chance, 1.0))
    entropy = -(chance * logs).sum(axis=1)
    names = ("group", "parent", "plan", "segment", "turn", "reward", "done", "truncated")
    plans = world.plans[state]
    table = make_table(
        {
            **{name: columns[name] for name in names},
            "level": world.level[state],
            "role": world.role[state],
            "agent": world.agent[state],
            "anchor": state,
            "entropy": entropy,
            "format": np.ones(len(state)),
        },
        tokens={
            "turn": np.arange(len(state)),
            "logprob": logs[np.arange(len(state)), columns["action"]],
            "entropy": entropy,
            "subgoal": plans,
            "action": ~plans,
        },
        names={"role": world.roles, "agent": world.agents},
        anchors=[str(number) for number in range(len(world.start))],
    )
    table.turns["row"] = group_ids(table["episode"], world.context[state])
    table.episodes["success"] = world.goal[columns["after"][table.episodes["leaf"]]].astype(np.float64)
    add_knowledge(table, world, policy, state, columns["action"])
    return table


def add_knowledge(table: TurnTable, world: World, policy: Array, state: Array, action: Array) -> None:
    """Add what the world knows of each turn.

    The columns of a critic that errs nowhere: values at the number and the state of the turn. `info_gain`: what the
    expected return of the episode grows by until the next turn. `feedback_gain`: log-prob of the next action, minus
    that of somebody who knows the world and does not see where the turn has led; both are 0 where no turn follows.
    """
    values, action_values = world.values(policy)
    turn, parent = np.asarray(table["turn"]), np.asarray(table["parent"])
    value, action_value = values[turn, state], action_values[turn, state, action]
    # What was likely, knowing the move: over the states in which somebody acts.
    likely = np.where(world.legal[:, :, None], world.moves, 0.0) @ np.where(world.over[:, None], 0.0, policy)
    acts = np.where(world.legal[:, :, None], world.moves, 0.0) @ np.where(world.over, 0.0, 1.0)
    later = np.flatnonzero(parent >= 0)
    before = state[parent[later]], action[parent[later]]
    blind = likely[(*before, action[later])] / acts[before]
    earned = np.asarray(table["reward"])[parent[later]]
    gains = {"info_gain": earned + value[later] - value[parent[later]]}
    gains["feedback_gain"] = np.log(policy[state[later], action[later]]) - np.log(blind)
    followers = np.maximum(np.bincount(parent[later], minlength=len(table)), 1)
    for name, gain in gains.items():
        table.turns[name] = np.bincount(parent[later], gain, len(table)) / followers
    table.turns.update(dict.fromkeys(("value", "value_low", "value_high", "v1", "v2"), value))
    table.turns.update(dict.fromkeys(("q1", "q2"), action_value))
    table.tokens["value"] = value
    # No turn begins a context of another agent in the middle of one.
    table.tokens["switch"] = np.zeros(len(table), np.bool_)


def draw(chances: Array, rng: np.random.Generator) -> Array:
    """(N,) a number for each row of (N, K) probabilities."""
    sums = np.cumsum(chances, axis=1)
    sums[:, -1] = np.inf  # the sum of a row may be slightly below 1
    drawn: Array = (rng.random(len(chances))[:, None] >= sums).sum(axis=1)
    # A row that ends in zeros must not give one of its zeros by rounding.
    last = chances.shape[1] - 1 - (chances[:, ::-1] > 0).argmax(axis=1)
    return np.minimum(drawn, last)
