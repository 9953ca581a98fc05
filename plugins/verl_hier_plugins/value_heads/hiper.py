"""The three heads of HiPER's critic (arXiv 2602.16165), docs/methods/hiper.md."""

from __future__ import annotations

import numpy as np

from verl_hier.credit import Ints
from verl_hier.credit.tokens import token_bounds
from verl_hier.graph.turn_table import TurnTable
from verl_hier.hookspecs import hookimpl
from verl_hier.host.specs import ValueHeadSpec
from verl_hier_plugins.value_heads.turns import first_tokens

SOURCE = "arXiv 2602.16165; JonP07/HiPER-agent hiper_hae/hier_mask.py"


def behind_subgoal(table: TurnTable) -> Ints:
    """(T,) the first token behind the subgoal of each turn, else behind its switch, else its first one; -1 without."""
    turn = np.asarray(table["tokens.turn"])
    start, stop = token_bounds(turn, len(table))
    place = start
    for name in ("switch", "subgoal"):
        inside = np.flatnonzero(np.asarray(table[f"tokens.{name}"], bool))
        behind = np.zeros(len(table), np.int64)
        np.maximum.at(behind, turn[inside], inside + 1)
        place = np.where((behind > 0) & (behind < stop), behind, place)
    return np.where(start < stop, place, -1)


@hookimpl
def hier_value_heads() -> list[ValueHeadSpec]:
    return [
        ValueHeadSpec("low", behind_subgoal, "value of the subgoal that is followed, behind `</subgoal>`", SOURCE),
        ValueHeadSpec("high", first_tokens, "value of the turn before it chooses a subgoal", SOURCE),
        ValueHeadSpec("term", first_tokens, "value of the turn before it keeps or switches", SOURCE),
    ]
