"""Kernels along time: discounted sums and generalised advantages over chains, segments and agents inside a turn.

Everything is one linear recurrence, `y[t] = values[t] + decay[t] * y[t + 1]`, whose decay is 0 where a chain ends. It
is solved by doubling, in blocks of whole chains that fit the processor's cache: work grows with the logarithm of the
longest chain, and there is no loop over chains.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from verl_hier.credit.groups import Bools, Floats, Ints
from verl_hier.errors import CreditError

_BLOCK = 1 << 15


def linear_scan(values: ArrayLike, decay: ArrayLike) -> Floats:
    """Solve `y[t] = values[t] + decay[t] * y[t + 1]` backwards, with y = 0 after the last entry.

    Args:
        values: (N,) float.
        decay: (N,) float; 0 cuts the chain after the entry. The last entry's decay is ignored.

    Returns:
        (N,) float64.
    """
    result = np.array(values, np.float64)
    factor = np.array(np.broadcast_to(np.asarray(decay, np.float64), result.shape))
    if result.size == 0:
        return result
    factor[-1] = 0.0
    ends = np.flatnonzero(factor == 0) + 1
    cuts = np.unique(
        ends[np.searchsorted(ends, np.arange(_BLOCK, result.size + _BLOCK, _BLOCK)).clip(max=ends.size - 1)]
    )
    start = 0
    for stop in cuts.tolist():
        _scan_block(result[start:stop], factor[start:stop])
        start = stop
    return result


def _scan_block(result: Floats, factor: Floats) -> None:
    """Solve whole chains in place by doubling; `factor` is used up."""
    run = np.diff(np.flatnonzero(factor == 0), prepend=-1).max()
    shift = 1
    while shift < run:
        result[:-shift] += factor[:-shift] * result[shift:]
        factor[:-shift] *= factor[shift:]
        shift *= 2


def chain_links(*columns: ArrayLike) -> Bools:
    """(N,) true where the next entry exists and agrees in every column: entries t and t + 1 are one chain."""
    if not columns:
        raise CreditError("chain_links needs at least one column.")
    arrays = [np.asarray(column) for column in columns]
    links = np.zeros(len(arrays[0]), np.bool_)
    links[:-1] = True
    for array in arrays:
        links[:-1] &= array[1:] == array[:-1]
    return links


def shift_back(values: ArrayLike, links: Bools, ends: ArrayLike = 0.0) -> Floats:
    """(N,) the next entry's value inside a chain, `ends` (a number or (N,)) at its last entry."""
    data = np.asarray(values, np.float64)
    following = np.empty_like(data)
    following[:-1] = data[1:]
    if data.size:
        following[-1] = 0.0
    return np.where(links, following, ends)


def discounted_sum(rewards: ArrayLike, links: Bools, gamma: float, tail: ArrayLike = 0.0) -> Floats:
    """Reward-to-go inside chains.

    Args:
        rewards: (N,) float, in time order inside a chain.
        links: (N,) bool, see `chain_links`.
        gamma: discount.
        tail: what follows the last entry of a chain, before discounting; a number or (N,) read at the ends.

    Returns:
        (N,) float64, `G[t] = r[t] + gamma * G[t + 1]`.
    """
    start = np.asarray(rewards, np.float64) + np.where(links, 0.0, gamma * np.asarray(tail, np.float64))
    return linear_scan(start, gamma * links)


def gae(
    rewards: ArrayLike,
    values: ArrayLike,
    following: ArrayLike,
    links: ArrayLike,
    gamma: ArrayLike,
    lam: ArrayLike,
) -> Floats:
    """Generalised advantages: `d[t] = r[t] + gamma[t] * following[t] - values[t]`, summed back with gamma * lam.

    Args:
        rewards, values: (N,) float.
        following: (N,) the value that bootstraps entry t: the next entry's inside a chain; at an end the bootstrap,
            or 0 when the task was done. See `shift_back`.
        links: (N,) bool or 0/1 float; whether the advantage of t + 1 flows into t.
        gamma, lam: a number or (N,); an SMDP passes gamma to the power of the duration.

    Returns:
        (N,) float64 advantages; critic targets are advantages + values.
    """
    value = np.asarray(values, np.float64)
    discount = np.asarray(gamma, np.float64)
    delta = np.asarray(rewards, np.float64) + discount * np.asarray(following, np.float64) - value
    return linear_scan(delta, discount * np.asarray(lam, np.float64) * np.asarray(links, np.float64))


def segment_starts(chain: ArrayLike, segment: ArrayLike) -> Bools:
    """(N,) true at the first entry of every (chain, segment) run of sorted entries."""
    links = chain_links(chain, segment)
    starts = np.ones(links.size, np.bool_)
    starts[1:] = ~links[:-1]
    return starts


def segment_sums(values: ArrayLike, starts: Bools, gamma: float = 1.0) -> tuple[Floats, Ints]:
    """Discounted sum and length of every segment: (K,) float64 and (K,) int64 for K = starts.sum()."""
    first = np.flatnonzero(starts)
    length = np.diff(np.append(first, len(starts)))
    links = np.append(~starts[1:], False)[: len(starts)]
    return discounted_sum(values, links, gamma)[first], length


def whiten(
    values: ArrayLike, mask: ArrayLike | None = None, eps: float = 1e-8, weights: ArrayLike | None = None
) -> Floats:
    """Values of the whole batch to mean 0 and variance 1, verl's way: Bessel-corrected, eps inside the root.

    Args:
        values: (N,) float.
        mask: (N,) bool; other entries are left out and get 0. One entry alone is centred and not scaled.
        eps: added to the variance.
        weights: (N,) how often an entry counts, for instance the tokens of a turn.

    Returns:
        (N,) float64.
    """
    data = np.asarray(values, np.float64)
    keep = np.ones(data.shape, np.bool_) if mask is None else np.asarray(mask, np.bool_)
    votes = keep.astype(np.float64) if weights is None else np.where(keep, np.asarray(weights, np.float64), 0.0)
    total = votes.sum()
    if total <= 0:
        return np.zeros(data.shape)
    mean = (votes * np.where(keep, data, 0.0)).sum() / total
    deviation = np.where(keep, data - mean, 0.0)
    variance = (votes * deviation**2).sum() / (total - 1) if total > 1 else 1.0
    scaled: Floats = deviation / np.sqrt(variance + eps)
    return scaled
