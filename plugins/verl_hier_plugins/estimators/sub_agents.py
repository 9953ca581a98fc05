"""Credit for delegation: what an agent and its sub-agents learn from one return; docs/methods/sub_agents.md."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from verl_hier.credit import (
    Bools,
    Centre,
    Credit,
    Floats,
    Ints,
    Normalisation,
    Scale,
    ZeroVariance,
    episode_advantage,
    episodes_to_turns,
    group_advantage,
    group_ids,
    singletons,
    trained_only,
)
from verl_hier.graph.turn_table import TurnTable
from verl_hier.hookspecs import hookimpl
from verl_hier.host.constraints import NonNegative
from verl_hier.host.specs import EstimatorSpec

Practice = Literal["by_role", "inherit", "broadcast", "split", "longest", "own"]
Conversation = Literal["agent", "row"]


@dataclass(frozen=True)
class SubAgentsOptions:
    """The defaults compare each conversation with those of its kind, with one vote for each episode."""

    practice: Practice = "by_role"
    """`by_role`: the return, among the conversations of the same role and level, one vote an episode. `inherit`: all
    conversations get the advantage of their episode among the episodes of the task. `broadcast`: each conversation is a
    sample with the return of the episode and a vote. `split`: the same with the return divided by the number of
    conversations. `longest`: only the conversation with most tokens of its own is trained. `own`: as `by_role`,
    with what the turns of the conversation have earned instead of the return."""
    conversation: Conversation = "agent"
    """What a conversation is: all turns of one agent of an episode, over its compactions, or each token sequence. With
    `row`, `own` compares the parts of an agent's work with each other, and one that spawns earns nothing itself."""
    return_share: NonNegative = 0.5
    """Part of the return of the episode that `own` adds to what the conversation has earned itself."""
    compared_by: tuple[str, ...] = ("role", "level")
    """Columns in which conversations have to agree in order to be compared, for `by_role` and `own`."""
    centre: Centre = "mean"
    """What is subtracted; `leave_one_out` is the mean of the other votes."""
    scale: Scale = "sample"
    """What is divided by."""
    eps: NonNegative = 1e-6
    """Added to the scale."""
    alone: Literal["inherit", "zero"] = "inherit"
    """A conversation that no other episode has a like of gets the advantage of its episode, or 0."""
    zero_variance: ZeroVariance = "zero"
    """A group without spread; only `mad` scales can have one that is not trivially 0."""


def advantage(table: TurnTable, options: SubAgentsOptions) -> Credit:
    """(T,) credit of the conversation that each turn belongs to.

    Only turns that are trained make a conversation: one of masked turns alone, such as a summary that is left out of
    the loss, has no vote and is not counted by `split`.
    """
    kernel: Normalisation = {
        "centre": options.centre,
        "scale": options.scale,
        "eps": options.eps,
        "zero_variance": options.zero_variance,
        "singleton": "zero",
    }
    inherited = episodes_to_turns(table, episode_advantage(table, **kernel))
    if options.practice == "inherit":
        return Credit(inherited)
    chosen = np.asarray(table["trained"], bool)
    talks = conversations(table, options.conversation)
    if options.practice == "longest":
        chosen = chosen & longest(table, talks, chosen)
    scores, keys = scores_of(table, options, talks, chosen), group_ids(table["group"])
    voters = talks
    if options.practice in ("by_role", "own"):
        keys = group_ids(keys, *(table[name] for name in options.compared_by))
        voters = group_ids(keys, table["episode"])
    votes = equal_votes(group_ids(voters, keys), group_ids(talks, keys), chosen)
    values = group_advantage(scores, keys, weights=votes, where=chosen, **kernel)
    if options.alone == "inherit":
        values = np.where(singletons(keys, votes, chosen), inherited, values)
    weight = chosen.astype(np.float64) if options.practice == "longest" else None
    return Credit(trained_only(table, np.where(chosen, values, 0.0)), weight=weight)


def conversations(table: TurnTable, by: Conversation) -> Ints:
    """(T,) number of the conversation of each turn."""
    return group_ids(table["row"]) if by == "row" else group_ids(table["episode"], table["agent"])


def scores_of(table: TurnTable, options: SubAgentsOptions, talks: Ints, chosen: Bools) -> Floats:
    """(T,) what the conversation of each turn is compared by.

    Args:
        table: the turns.
        options: see there.
        talks: (T,) conversation of each turn.
        chosen: (T,) the turns that count.
    """
    counts = np.bincount(talks, chosen)
    total = np.bincount(talks, np.where(chosen, table["return"], 0.0))
    returns = np.divide(total, counts, out=np.zeros_like(total), where=counts > 0)
    if options.practice == "own":
        earned = np.bincount(talks, np.where(chosen, table["reward"], 0.0))
        return (earned + options.return_share * returns)[talks]
    if options.practice == "split":
        return returns[talks] / np.maximum(conversations_of_episode(table, talks, chosen), 1)
    return returns[talks]


def conversations_of_episode(table: TurnTable, talks: Ints, chosen: Bools) -> Ints:
    """(T,) how many conversations with chosen turns the turn's episode has."""
    episodes = group_ids(table["episode"])
    first = np.unique(np.where(chosen, talks, -1), return_index=True)[1]
    first = first[chosen[first]]
    return np.bincount(episodes[first], minlength=int(episodes.max(initial=-1)) + 1)[episodes].astype(np.int64)


def longest(table: TurnTable, talks: Ints, chosen: Bools) -> Bools:
    """(T,) whether a turn is of the conversation with most action tokens of its episode; of equal ones, the first."""
    size = np.bincount(talks, np.where(chosen, table["n_tokens"], 0))
    size[np.bincount(talks, chosen) == 0] = -1
    began = np.full(size.size, np.iinfo(np.int64).max)
    np.minimum.at(began, talks, np.asarray(table["turn"], np.int64))
    episodes = group_ids(table["episode"])
    order = np.lexsort((began[talks], -size[talks], episodes))
    best = talks[order[np.unique(episodes[order], return_index=True)[1]]]
    found: Bools = talks == best[episodes]
    return found


def equal_votes(voters: Ints, talks: Ints, chosen: Bools) -> Floats:
    """(T,) votes of turns: each voter has one, of which its conversations have equal parts, and their turns of those.

    Args:
        voters: (T,) who has one vote.
        talks: (T,) conversation of each turn; each belongs to one voter.
        chosen: (T,) the turns that count; the others have no vote.
    """
    turns = np.bincount(talks, chosen)[talks]
    part = np.divide(1.0, turns, out=np.zeros(len(talks)), where=chosen)
    members = np.bincount(voters, part)[voters]
    return np.divide(part, members, out=np.zeros(len(talks)), where=chosen)


def weighs(options: SubAgentsOptions) -> str:
    """The option by which turns get loss weights, empty where none does."""
    return "practice: longest" if options.practice == "longest" else ""


@hookimpl
def hier_estimators() -> EstimatorSpec:
    return EstimatorSpec(
        "sub_agents",
        advantage,
        SubAgentsOptions,
        summary="an agent and its sub-agents: each conversation among its kind, or as other trainers do it",
        source="THUDM/slime #2161, #2302; verl-project/uni-agent #185; NovaSky-AI/SkyRL #1596",
        requires=(
            *("group", "episode", "agent", "role", "level", "return", "trained"),
            *("episodes.group", "episodes.return", "episodes.trained"),
        ),
        weighs=weighs,
        confidence="C",
    )
