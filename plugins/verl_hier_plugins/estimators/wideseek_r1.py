"""WideSeek-R1, a lead and its sub-agents with a filter of turns (arXiv 2602.04634), docs/methods/wideseek_r1.md."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from verl_hier.credit import Bools, Credit, Floats, Normalisation, group_advantage, group_ids, group_mean
from verl_hier.graph.turn_table import TurnTable
from verl_hier.hookspecs import hookimpl
from verl_hier.host.constraints import Count, NonNegative
from verl_hier.host.specs import EstimatorSpec


@dataclass(frozen=True)
class WideSeekOptions:
    """The lead's turns are those of level 0. Defaults are the released configuration's."""

    format_reward: NonNegative = 0.1
    """Added for an answer in its form."""
    call_reward: NonNegative = 0.05
    """Added when some turn of the episode has called a tool."""
    length_penalty: NonNegative = 0.1
    """Taken when the longest turn reaches `longest` tokens, in parts from `long` on."""
    long: Count = 3000
    """Tokens of a turn from which it costs something."""
    longest: Count = 5000
    """Tokens of a turn that cost the whole penalty."""
    per: Literal["trajectory", "turn"] = "trajectory"
    """Trajectories of a task are compared by the mean reward of their turns, or all its turns by their own."""
    agent_level: bool = True
    """Whether the agents of an episode have an equal say in the loss, whatever their numbers of turns."""
    turn_level: bool = True
    """Whether a turn has a say by its tokens among those of its agent's turns; needs `agent_level`."""
    global_batch: Count | None = None
    """When set, advantages are multiplied by the number of turns over this number, as the released trainer does, which
    divides by it; verl's losses divide by what there is."""
    eps: NonNegative = 1e-6
    """Added to the standard deviation."""

    def __post_init__(self) -> None:
        if self.longest <= self.long:
            raise ValueError(f"longest must be above long, got {self.longest} and {self.long}")
        if self.turn_level and not self.agent_level:
            raise ValueError("turn_level needs agent_level, among whose turns it shares; set both or none")


def advantage(table: TurnTable, options: WideSeekOptions) -> Credit:
    """Credit per turn: the reward of its episode against those of the task; turns that the filter leaves out have the
    weight 0."""
    rewards, kept = assigned(table, options)
    return credit_of_rewards(table, rewards, kept & np.asarray(table["trained"], bool), options)


def assigned(table: TurnTable, options: WideSeekOptions) -> tuple[Floats, Bools]:
    """(T,) reward of the turn's episode, and whether the turn is trained.

    A sound answer earns the return and its extras, and trains all turns but those that came to a limit. A lead that
    failed earns 0 and trains its failed turns. An episode without a sound answer earns 0, and trains its last turn if
    that was not cut, with the turns that repeated themselves or, without any, those that came to a limit.
    """
    keys = group_ids(table["episode"])
    lead = np.asarray(table["level"]) == 0
    limit, repeat = (np.asarray(table[name]) > 0 for name in ("limit_failed", "repeat_failed"))
    last = _last(table, keys)
    answered = np.asarray(table["answered"]) > 0
    sound = _any(keys, answered & np.asarray(table["valid"], bool))
    lost = _any(keys, lead & (limit | repeat))
    stuck = _any(keys, repeat)
    kept = np.where(
        sound,
        np.where(lost, lead & (limit | repeat), ~limit),
        (last & np.asarray(table["complete"], bool)) | np.where(stuck, repeat, limit),
    )
    length = np.zeros(int(keys.max(initial=-1)) + 1)
    np.maximum.at(length, keys, np.asarray(table["n_tokens"], np.float64))
    over = np.clip((length[keys] - options.long) / (options.longest - options.long), 0.0, 1.0)
    calls = _any(keys, np.asarray(table["access_calls"]) > 0)
    earned = np.asarray(table["return"], np.float64) + options.format_reward + options.call_reward * calls
    return np.where(sound & ~lost, earned - options.length_penalty * over, 0.0), np.asarray(kept, bool)


def credit_of_rewards(table: TurnTable, rewards: Floats, kept: Bools, options: WideSeekOptions) -> Credit:
    """Credit of turns that have these rewards.

    Args:
        table: the turns.
        rewards: (T,) reward of each turn.
        kept: (T,) whether the turn is trained.
        options: see `WideSeekOptions`.
    """
    groups, episodes = group_ids(table["group"]), group_ids(table["episode"])
    kernel: Normalisation = {"eps": options.eps}
    if options.per == "turn":
        values = group_advantage(rewards, groups, where=kept, **kernel)
    else:
        means = group_mean(rewards, episodes)[episodes]
        votes = 1.0 / np.bincount(episodes)[episodes]
        values = group_advantage(means, groups, weights=votes, **kernel)
    if options.global_batch is not None:
        values = values * len(table) / options.global_batch
    return Credit(np.where(kept, values, 0.0), weight=kept * scales(table, options))


def scales(table: TurnTable, options: WideSeekOptions) -> Floats:
    """(T,) what the loss of a turn is multiplied by."""
    if not options.agent_level:
        return np.ones(len(table))
    episode, agent = group_ids(table["episode"]), group_ids(table["episode"], table["agent"])
    first = np.zeros(len(agent), bool)
    first[np.unique(agent, return_index=True)[1]] = True
    agents, turns = np.bincount(episode, first)[episode], np.bincount(agent)[agent]
    if not options.turn_level:
        return 1.0 / (agents * turns)
    tokens = np.asarray(table["n_tokens"], np.float64)
    total = np.bincount(agent, tokens)[agent]
    return np.divide(tokens, agents * total, out=np.zeros(len(agent)), where=total > 0)


def _any(keys: np.ndarray, chosen: Bools) -> Bools:
    """(T,) whether some turn of the same key is chosen."""
    return (np.bincount(keys, chosen, minlength=int(keys.max(initial=-1)) + 1) > 0)[keys]


def _last(table: TurnTable, keys: np.ndarray) -> Bools:
    """(T,) whether the turn is the last one of its episode."""
    number = np.asarray(table["turn"])
    most = np.full(int(keys.max(initial=-1)) + 1, -1, number.dtype)
    np.maximum.at(most, keys, number)
    return np.asarray(number == most[keys], bool)


@hookimpl
def hier_estimators() -> EstimatorSpec:
    return EstimatorSpec(
        "wideseek_r1",
        advantage,
        WideSeekOptions,
        summary="answers of a lead with sub-agents, z-scored over the task; failed turns leave the loss",
        source="arXiv 2602.04634; RLinf/RLinf agents/wideseek_r1/utils/reward.py, algorithms/advantages.py",
        requires=(
            *("group", "episode", "agent", "level", "turn", "return", "valid", "trained", "n_tokens", "complete"),
            *("answered", "access_calls", "limit_failed", "repeat_failed"),
        ),
        weighs=lambda options: "name: wideseek_r1",
        confidence="A",
    )
