"""The group kernel: compare every score with the others of its group. One function carries all group-relative methods.

Shapes: N rows (turns, episodes or steps, as the caller likes), K groups. Nothing loops over rows or groups in Python.
"""

from __future__ import annotations

from typing import Any, Literal, TypedDict

import numpy as np
from numpy.typing import ArrayLike, NDArray

from verl_hier.credit.explain import Comparison, compared, recording
from verl_hier.errors import CreditError

Centre = Literal["mean", "median", "leave_one_out", "none"]
Scale = Literal["sample", "population", "mad", "none"]
Singleton = Literal["raw", "zero", "drop"]
ZeroVariance = Literal["zero", "divide", "std"]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


class Normalisation(TypedDict, total=False):
    """Arguments of `group_advantage`: how the scores of a group are centred and scaled."""

    centre: Centre
    scale: Scale
    eps: float
    singleton: Singleton
    zero_variance: ZeroVariance


EPS = 1e-6
_TINY = 1e-9
_DENSE = 4
_SMALL = 1024


def number(column: ArrayLike) -> tuple[Ints, int]:
    """Equal entries of a column as equal numbers 0..K-1, in the order of the values.

    Integers of a small range are numbered by counting (linear time), everything else by sorting.

    Args:
        column: (N,) integers, booleans, floats or strings; other objects are compared by their text.

    Returns:
        (N,) int64 numbers and K.
    """
    codes, width = _codes(column)
    return _dense(codes, width)


def group_ids(*columns: ArrayLike) -> Ints:
    """Integer keys from any number of columns: rows that agree in all columns get one number.

    Args:
        *columns: (N,) each, see `number`; without a column a CreditError is raised.

    Returns:
        (N,) int64 in 0..K-1, numbered in lexicographic order of the columns, so that a permutation of the rows
        permutes the keys and changes nothing else.
    """
    if not columns:
        raise CreditError("group_ids needs at least one column.")
    keys, width = _codes(columns[0])
    for column in columns[1:]:
        codes, more = _codes(column)
        if codes.size != keys.size:
            raise CreditError(f"key columns have different lengths: {keys.size} and {codes.size}.")
        if width * more > _DENSE * keys.size + _SMALL:
            (keys, width), (codes, more) = _dense(keys, width), _dense(codes, more)
        keys = keys * more
        keys += codes
        width *= more
    return _dense(keys, width)[0]


def _codes(column: ArrayLike) -> tuple[Ints, int]:
    """(N,) order-preserving integers from 0 of a column, not necessarily dense, and a bound above all of them."""
    values = np.asarray(column)
    if values.ndim != 1:
        raise CreditError(f"a key column must have one dimension, got shape {values.shape}.")
    if values.size == 0:
        return np.zeros(0, np.int64), 0
    if values.dtype.kind == "O":
        values = np.frompyfunc(str, 1, 1)(values).astype(str)
    if values.dtype.kind in "iub":
        codes = values.astype(np.int64, copy=False)
        low, high = int(codes.min()), int(codes.max())
        if high - low < 1 << 62:
            return (codes - low if low else codes), high - low + 1
    unique, inverse = np.unique(values, return_inverse=True)
    return inverse.reshape(-1).astype(np.int64, copy=False), len(unique)


def _dense(codes: Ints, width: int) -> tuple[Ints, int]:
    """Codes below `width` without gaps, and how many there are."""
    if width > _DENSE * codes.size + _SMALL:
        unique, inverse = np.unique(codes, return_inverse=True)
        return inverse.reshape(-1).astype(np.int64, copy=False), len(unique)
    present = np.zeros(width, np.bool_)
    present[codes] = True
    if present.all():
        return codes, width
    ranks = np.cumsum(present, dtype=np.int64)
    ranks -= 1
    return ranks[codes], int(ranks[-1]) + 1


def group_sum(values: ArrayLike, keys: Ints, size: int | None = None) -> Floats:
    """Sum of `values` (N,) per key: (K,) float64."""
    sums = np.bincount(keys, np.asarray(values, np.float64), size or _count(keys))
    return sums.astype(np.float64, copy=False)


def group_mean(values: ArrayLike, keys: Ints, weights: ArrayLike | None = None) -> Floats:
    """Weighted mean of `values` (N,) per key: (K,) float64, 0 for a group without weight."""
    data = np.asarray(values, np.float64)
    return _mean(data, keys, None if weights is None else np.asarray(weights, np.float64), _votes(keys, weights))


def group_median(values: ArrayLike, keys: Ints, weights: ArrayLike | None = None) -> tuple[Floats, Ints]:
    """Lower (weighted) median of every group, and the row that holds it.

    The rows of a group are sorted by value, ties by row number; the median is the first whose cumulative weight
    reaches half of the group's. An even group has the lower middle, as `torch.median`.

    Returns:
        (K,) float64 medians and (K,) int64 rows. A group without weight reports its first row in that order.
    """
    data = np.asarray(values, np.float64)
    order = np.lexsort((data, keys))
    count = np.bincount(keys)
    starts = np.cumsum(count) - count
    weight = np.ones(data.size) if weights is None else np.asarray(weights, np.float64)[order]
    running = np.cumsum(weight)
    offset = running[starts] - weight[starts]
    inside = running - np.repeat(offset, count)
    half = np.repeat(np.bincount(keys, weights, count.size) / 2 if weights is not None else count / 2, count)
    below = np.bincount(keys[order], inside < half - _TINY, count.size).astype(np.int64)
    rows = order[starts + np.minimum(below, count - 1)]
    return data[rows], rows


def singletons(keys: Ints, weights: ArrayLike | None = None, where: ArrayLike | None = None) -> Bools:
    """(N,) true for rows whose group has at most one vote, so that nothing can be compared."""
    return _votes(keys, _effective(keys, weights, where))[keys] <= 1 + _TINY


def group_advantage(
    scores: ArrayLike,
    keys: Ints,
    *,
    weights: ArrayLike | None = None,
    where: ArrayLike | None = None,
    centre: Centre = "mean",
    scale: Scale = "sample",
    eps: float = EPS,
    singleton: Singleton = "raw",
    zero_variance: ZeroVariance = "zero",
) -> Floats:
    """Scores centred and scaled by the statistics of their group: (score - centre) / (scale + eps).

    Args:
        scores: (N,) float, finite where counted.
        keys: (N,) int64 group numbers, see `group_ids`.
        weights: (N,) non-negative votes, None for one vote a row. A row with weight 0 is centred and scaled like the
            others but does not enter the statistics. Variances use frequency weights, sum(w (s - m)^2) / (sum(w) - 1),
            so rows that share one vote count exactly as one row.
        where: (N,) bool; other rows do not enter the statistics and get 0.
        centre: `leave_one_out` compares with the mean of the other votes; `median` is the lower one.
        scale: `sample` has ddof 1, `population` ddof 0, `mad` is the median absolute deviation.
        eps: added to the scale; unused with scale `none`.
        singleton: a group with at most one vote keeps its raw score (divided by 1 + eps when scaled), or gets 0;
            `drop` gives 0 too, and `singletons` tells which rows the caller should leave out of the loss.
        zero_variance: what a group with more votes and no spread gets: 0, its centred score divided by eps alone,
            or (for `mad`, whose spread vanishes when most scores are equal) the sample-std form around the mean,
            which replaces every spread below eps.

    Returns:
        (N,) float64.

    Raises:
        CreditError: for a NaN or infinite score that counts, or arrays of different lengths.
    """
    where = _some(where)
    data = _finite(np.asarray(scores, np.float64), keys, where)
    if data.size == 0:
        return data
    given = keys
    keys, votes_of, ignored = _electorate(keys, weights, where)
    votes = _votes(keys, votes_of)
    middle = _middle(data, keys, votes_of, votes, centre)
    out = np.array(data) if middle is None else data - middle[keys]
    factor, flat, spread = np.ones_like(votes), np.zeros(votes.shape, np.bool_), np.ones_like(votes)
    if scale != "none":
        spread = _spread(data, keys, votes_of, votes, middle, scale, out if centre == "mean" else None)
        size = _mean(data, keys, votes_of, votes) if middle is None else middle
        factor, flat = _inverse(spread, size, eps, zero_variance, scale)
    if centre == "leave_one_out":
        np.divide(factor * votes, votes - 1, out=factor, where=votes > 1 + _TINY)
    alone = votes <= 1 + _TINY
    factor[alone] = 0.0
    if ignored is not None:
        factor[ignored:] = 0.0
        alone[ignored:] = False
    out *= factor[keys]
    out += 0.0  # no negative zeros
    if zero_variance == "std" and scale == "mad" and flat.any():
        fallback = group_advantage(data, given, weights=weights, where=where, eps=eps, singleton=singleton)
        out = np.where(flat[keys], fallback, out)
    if singleton == "raw" and alone.any():
        rows = np.flatnonzero(alone[keys])
        out[rows] = data[rows] / (1.0 + eps) if scale != "none" else data[rows]
    out = out if where is None or ignored is not None else np.where(where, out, 0.0)
    if recording():
        rule = {"centre": centre, "scale": scale, "eps": eps, "singleton": singleton, "zero variance": zero_variance}
        counted = np.ones(keys.size) if votes_of is None else votes_of
        counted = counted if ignored is None else np.where(keys < ignored, counted, 0.0)
        middles = np.zeros(keys.size) if middle is None else middle[keys]
        compared(Comparison(data, given, counted, middles, spread[keys], factor[keys], np.array(out), rule))
    return out


def no_spread(spread: ArrayLike, size: ArrayLike) -> Bools:
    """Whether scores of this `size` spread no more than rounding does; the one rule of zero variance.

    Args:
        spread: (K,) standard or absolute deviation of each group.
        size: (K,) mean or centre of each group.
    """
    found: Bools = np.asarray(spread, np.float64) <= _TINY * np.abs(np.asarray(size, np.float64))
    return found


def equal_scores(scores: ArrayLike, keys: Ints) -> Bools:
    """(K,) whether a group has several scores, all equal up to rounding: those that `group_advantage` gives no credit.

    Args:
        scores: (N,) float; a group with a score that is not finite has no equal ones.
        keys: (N,) int64 group numbers.
    """
    data, votes = np.asarray(scores, np.float64), _votes(keys, None)
    with np.errstate(invalid="ignore", over="ignore"):
        mean = _mean(data, keys, None, votes)
        spread = _spread(data, keys, None, votes, mean, "sample", None)
    found: Bools = (votes > 1) & no_spread(spread, mean)
    return found


def _electorate(keys: Ints, weights: ArrayLike | None, where: Bools | None) -> tuple[Ints, Floats | None, int | None]:
    """Keys, votes, and the number of the extra group that holds the rows which do not count; None without one."""
    if weights is None and where is not None:
        extra = _count(keys)
        return np.where(where, keys, extra), None, extra
    return keys, _effective(keys, weights, where), None


def _inverse(
    spread: Floats, size: Floats, eps: float, zero_variance: ZeroVariance, scale: Scale
) -> tuple[Floats, Bools]:
    """(K,) what a centred score is multiplied by, and which groups spread no more than rounding does at this `size`."""
    flat = no_spread(spread, size)
    if scale == "mad" and zero_variance == "std":
        flat = spread < eps
    factor = np.divide(1.0, spread + eps, out=np.ones_like(spread), where=(spread + eps) > 0)
    if zero_variance != "divide":
        factor[flat] = 0.0
    return factor, flat


def _middle(data: Floats, keys: Ints, weights: Floats | None, votes: Floats, centre: Centre) -> Floats | None:
    """(K,) what is subtracted; None for nothing."""
    if centre == "none":
        return None
    if centre == "median":
        return group_median(data, keys, weights)[0]
    return _mean(data, keys, weights, votes)


def _mean(data: Floats, keys: Ints, weights: Floats | None, votes: Floats) -> Floats:
    """(K,) weighted mean, given the votes; 0 without votes."""
    total = group_sum(data if weights is None else data * weights, keys, votes.size)
    return np.divide(total, votes, out=np.zeros_like(total), where=votes > 0)


def _spread(
    data: Floats,
    keys: Ints,
    weights: Floats | None,
    votes: Floats,
    middle: Floats | None,
    scale: Scale,
    centred: Floats | None,
) -> Floats:
    """(K,) the group's scale before eps; 1 where there are too few votes for one. `centred` (N,) saves centring
    twice."""
    if scale == "mad":
        centre = group_median(data, keys, weights)[0] if middle is None else middle
        return group_median(np.abs(data - centre[keys]), keys, weights)[0]
    deviation = data - _mean(data, keys, weights, votes)[keys] if centred is None else centred
    squares = deviation * deviation
    if weights is not None:
        squares *= weights
    total = group_sum(squares, keys, votes.size)
    votes_less = votes - 1 if scale == "sample" else votes
    spread: Floats = np.sqrt(np.divide(total, votes_less, out=np.ones_like(total), where=votes_less > _TINY))
    return spread


def _effective(keys: Ints, weights: ArrayLike | None, where: ArrayLike | None) -> Floats | None:
    """Weights with `where` folded in; None for one vote a row."""
    if weights is None and where is None:
        return None
    votes = np.ones(keys.size) if weights is None else np.asarray(weights, np.float64)
    if votes.shape != keys.shape or (where is not None and np.shape(where) != keys.shape):
        raise CreditError(f"weights and `where` must have the shape of the keys, {keys.shape}.")
    if votes.size and not votes.min() >= 0:
        raise CreditError("weights must be numbers of at least 0.")
    return votes if where is None else votes * np.asarray(where, bool)


def _votes(keys: Ints, weights: ArrayLike | None) -> Floats:
    """(K,) sum of the votes of each group."""
    return np.bincount(keys, weights, _count(keys)).astype(np.float64, copy=False)


def _some(where: ArrayLike | None) -> Bools | None:
    """`where` as booleans, None when it leaves nothing out."""
    if where is None:
        return None
    mask = np.asarray(where, np.bool_)
    return None if mask.all() else mask


def _finite(data: Floats, keys: Ints, where: ArrayLike | None) -> Floats:
    """`data`, with ignored rows that are not finite set to 0; refuses the others, and another shape than the keys."""
    if data.shape != keys.shape:
        raise CreditError(f"scores and keys differ in shape: {data.shape} and {keys.shape}.")
    bad = ~np.isfinite(data)
    if not bad.any():
        return data
    counted = bad if where is None else bad & np.asarray(where, bool)
    if counted.any():
        row = int(np.flatnonzero(counted)[0])
        raise CreditError(f"scores must be finite: row {row} is {data[row]}.")
    return np.where(bad, 0.0, data)


def _count(keys: NDArray[Any]) -> int:
    return int(keys.max()) + 1 if keys.size else 0
