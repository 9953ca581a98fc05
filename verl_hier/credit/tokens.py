"""From turns to tokens: spread credit, restrict it to masks, combine levels. The last step of every estimator.

Shapes: T turns, N action tokens of a flat batch, B x L of a padded one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from verl_hier.credit.groups import Bools, Floats, Ints
from verl_hier.errors import CreditError

if TYPE_CHECKING:
    from verl_hier.graph.turn_table import TurnTable

Combine = Literal["sum", "weighted", "disjoint", "replace"]


def spread(values: ArrayLike, index: NDArray[Any], dtype: Any = np.float32) -> NDArray[Any]:
    """Values at the positions that an index names, in one gather.

    Args:
        values: (T,) one number a turn (or step, or token).
        index: integer array of any shape, the turn of each position, -1 for positions without credit.
        dtype: of the result.

    Returns:
        array of the shape of `index`.
    """
    table = np.zeros(len(np.asarray(values)) + 1, dtype)
    table[:-1] = values
    return table.take(index, mode="wrap")


def spread_rows(values: ArrayLike, mask: NDArray[Any], dtype: Any = np.float32) -> NDArray[Any]:
    """(B, L) the value (B,) of each row on its mask (B, L), 0 elsewhere: the layout of one turn a row."""
    column = np.asarray(values, dtype)[:, None]
    out = np.empty(mask.shape, dtype)
    return np.multiply(mask.view(np.int8) if mask.dtype == np.bool_ else mask, column, out=out, casting="same_kind")


def on_mask(values: ArrayLike, turn: Ints, mask: ArrayLike) -> Floats:
    """(N,) the turn's value (T,) on the tokens of a mask (N,), 0 elsewhere."""
    return np.where(np.asarray(mask, np.bool_), np.asarray(values, np.float64)[turn], 0.0)


def token_bounds(turn: Ints, turns: int) -> tuple[Ints, Ints]:
    """(T,) the first action token of each turn, and the place behind its last one; equal for a turn without tokens.

    Args:
        turn: (N,) the turn of each action token, ascending.
        turns: T.
    """
    number = np.arange(turns)
    return np.searchsorted(turn, number), np.searchsorted(turn, number, side="right")


def has_token(turn: Ints, mask: ArrayLike, turns: int) -> Bools:
    """(T,) whether a turn has a token of the mask."""
    return np.bincount(turn, np.asarray(mask, np.bool_), turns) > 0


def combine_levels(parts: Sequence[ArrayLike], rule: Combine = "sum", weights: ArrayLike | None = None) -> Floats:
    """Several levels of credit as one.

    Args:
        parts: arrays of one shape, the highest level first.
        rule: `sum` (weights multiply); `weighted` mean over the parts that are not 0 at a place, 0 where all are;
            `disjoint` sum of parts that never overlap; `replace`: a lower level replaces the higher one where it is
            not 0.
        weights: one a part, 1 each when omitted.

    Raises:
        CreditError: when disjoint parts overlap.
    """
    stack = np.stack([np.asarray(part, np.float64) for part in parts])
    factor = np.ones(len(stack)) if weights is None else np.asarray(weights, np.float64)
    factor = factor.reshape(-1, *[1] * (stack.ndim - 1))
    if rule == "replace":
        result = stack[0] * factor[0]
        for part, weight in zip(stack[1:], factor[1:], strict=True):
            result = np.where(part != 0, part * weight, result)
        return result
    if rule == "disjoint" and ((stack != 0).sum(0) > 1).any():
        raise CreditError("levels overlap: a place has credit from two of them.")
    total: Floats = (stack * factor).sum(0)
    if rule == "weighted":
        votes = ((stack != 0) * factor).sum(0)
        return np.divide(total, votes, out=np.zeros_like(total), where=votes != 0)
    return total


def row_positions(table: TurnTable) -> Ints:
    """(N,) place of each action token in the response of its row: 0 behind the row's first prompt, and later prompts
    count."""
    row, length = np.asarray(table["row"]), np.asarray(table["n_tokens"], np.int64)
    order = np.lexsort((np.asarray(table["depth"]), row))
    prompt = np.asarray(table["n_prompt"], np.int64)[order]
    first = np.flatnonzero(np.append(True, row[order][1:] != row[order][:-1])) if order.size else order
    prompt[first] = 0
    ends = np.cumsum(prompt + length[order])
    starts = ends - length[order]
    offset = np.repeat(starts[first], np.diff(np.append(first, order.size)))
    start = np.empty(order.size, np.int64)
    start[order] = starts - offset
    turn = np.asarray(table["tokens.turn"])
    within = np.arange(turn.size) - np.searchsorted(turn, turn)
    return start[turn] + within
