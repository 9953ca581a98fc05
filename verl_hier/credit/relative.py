"""Group-relative advantages of a turn table's episodes and turns: the two calls that most estimators are made of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from verl_hier.credit.explain import of_episodes
from verl_hier.credit.groups import Floats, Normalisation, group_advantage, group_ids, singletons
from verl_hier.credit.paths import (
    WeightBy,
    episode_votes,
    episodes_to_turns,
    format_penalty,
    trained_only,
    turn_keys,
    turn_votes,
)

if TYPE_CHECKING:
    from typing import Unpack  # since Python 3.11

    from verl_hier.graph.turn_table import TurnTable

RETURN_COLUMNS = ("trained", "episodes.return", "episodes.group", "episodes.trained")
"""Columns that `episode_advantage` and `episodes_to_turns` read."""


def episode_advantage(
    table: TurnTable,
    *,
    scores: ArrayLike | None = None,
    group_by: Sequence[str] = ("group",),
    weight_by: WeightBy = "episode",
    **kernel: Unpack[Normalisation],
) -> Floats:
    """(E,) advantage of every trained episode among the trained episodes of its group.

    Args:
        table: the turn table.
        scores: (E,) instead of the episode returns.
        group_by: episode columns that make the group, for instance ("group", "tree").
        weight_by: how many votes an episode has, see `paths.episode_votes`.
        **kernel: centre, scale, eps, singleton, zero_variance of `groups.group_advantage`.
    """
    keys = group_ids(*(table[f"episodes.{name}"] for name in group_by))
    data = table["episodes.return"] if scores is None else scores
    trained = np.asarray(table["episodes.trained"], bool)
    votes = episode_votes(table, weight_by)
    return of_episodes(group_advantage(data, keys, weights=votes, where=trained, **kernel))


def return_advantage(
    table: TurnTable, penalty: float = 0.0, *, weight_by: WeightBy = "episode", **kernel: Unpack[Normalisation]
) -> Floats:
    """(T,) advantage of the episodes through every trained turn; a penalty gives each turn a score of its own.

    Args:
        table: the turn table.
        penalty: taken from the return where the format of the turn is wrong, see `paths.format_penalty`. The score of
            no other turn changes, but the statistics of the task do, in which the turns then vote.
        weight_by: how many votes an episode has, or, with a penalty, the unit of turns that has one.
        **kernel: centre, scale, eps, singleton, zero_variance of `groups.group_advantage`.
    """
    if not penalty:
        return episodes_to_turns(table, episode_advantage(table, weight_by=weight_by, **kernel))
    scores = np.asarray(table["return"], np.float64) - format_penalty(table, penalty)
    return turn_advantage(table, scores, ("group",), weight_by=weight_by, **kernel)


def turn_advantage(
    table: TurnTable,
    scores: ArrayLike,
    group_by: Sequence[str],
    *,
    weight_by: WeightBy = "turn",
    where: ArrayLike | None = None,
    **kernel: Unpack[Normalisation],
) -> Floats:
    """(T,) advantage of every trained turn among the trained turns of its group; 0 for the others.

    Args:
        table: the turn table.
        scores: (T,) what is compared.
        group_by: turn columns that make the group, for instance ("group", "turn", "agent").
        weight_by: the unit that has one vote inside a group, see `paths.turn_votes`.
        where: (T,) bool, narrows the turns further.
        **kernel: centre, scale, eps, singleton, zero_variance of `groups.group_advantage`.
    """
    keys = turn_keys(table, group_by)
    chosen = np.asarray(table["trained"], bool)
    if where is not None:
        chosen = chosen & np.asarray(where, bool)
    votes = turn_votes(table, keys, weight_by, chosen)
    return trained_only(table, group_advantage(scores, keys, weights=votes, where=chosen, **kernel))


def drop_weights(table: TurnTable, group_by: Sequence[str], weight_by: WeightBy = "turn") -> Floats:
    """(T,) loss weights: 0 for turns whose group has at most one vote, else 1; for the singleton rule `drop`."""
    keys = turn_keys(table, group_by)
    trained = np.asarray(table["trained"], bool)
    return (~singletons(keys, turn_votes(table, keys, weight_by), trained)).astype(np.float64)
