"""Heads that any estimator may read: at the beginning of a turn, at its end, at every token; docs/critics.md."""

from __future__ import annotations

import numpy as np

from verl_hier.credit import Ints
from verl_hier.credit.tokens import token_bounds
from verl_hier.graph.turn_table import TurnTable
from verl_hier.hookspecs import hookimpl
from verl_hier.host.specs import ValueHeadSpec


def first_tokens(table: TurnTable) -> Ints:
    """(T,) the first action token of each turn: what is known before it speaks; -1 without one."""
    start, stop = token_bounds(np.asarray(table["tokens.turn"]), len(table))
    return np.where(start < stop, start, -1)


def last_tokens(table: TurnTable) -> Ints:
    """(T,) the last action token of each turn: what is known of all that it says but this token; -1 without one."""
    start, stop = token_bounds(np.asarray(table["tokens.turn"]), len(table))
    return np.where(start < stop, stop - 1, -1)


@hookimpl
def hier_value_heads() -> list[ValueHeadSpec]:
    return [
        ValueHeadSpec("first", first_tokens, summary="in front of the first token of a turn"),
        ValueHeadSpec("last", last_tokens, summary="in front of the last token of a turn"),
        ValueHeadSpec("token", summary="in front of every token of a turn"),
    ]
