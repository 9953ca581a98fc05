"""Slow, obvious reference_implementations of the kernels: one row, one group, one node at a time."""

import statistics

import numpy as np


def lower_median(values):
    return sorted(values)[(len(values) - 1) // 2]


def group_advantage(
    scores, keys, weights=None, where=None, centre="mean", scale="sample", eps=1e-6, singleton="raw", zero="zero"
):
    """Frequency weights are taken at their word: whole weights repeat the row."""
    n = len(scores)
    where = [True] * n if where is None else where
    weights = [1.0] * n if weights is None else weights
    out = []
    for i in range(n):
        if not where[i]:
            out.append(0.0)
            continue
        rows = [j for j in range(n) if keys[j] == keys[i] and where[j]]
        votes = sum(weights[j] for j in rows)
        if votes <= 1 + 1e-9:
            raw = scores[i] / (1 + eps) if scale != "none" else scores[i]
            out.append(raw if singleton == "raw" else 0.0)
            continue
        mean = sum(weights[j] * scores[j] for j in rows) / votes
        if centre == "mean":
            middle = mean
        elif centre == "leave_one_out":
            middle = (mean * votes - scores[i]) / (votes - 1)
        elif centre == "median":
            middle = lower_median([scores[j] for j in rows for _ in range(round(weights[j]))])
        else:
            middle = 0.0
        value = scores[i] - middle
        if scale == "none":
            out.append(value)
            continue
        if scale == "mad":
            around = lower_median([scores[j] for j in rows for _ in range(round(weights[j]))])
            around = around if centre in ("median", "none") else middle
            spread = lower_median([abs(scores[j] - around) for j in rows for _ in range(round(weights[j]))])
        else:
            square = sum(weights[j] * (scores[j] - mean) ** 2 for j in rows)
            spread = (square / (votes - 1 if scale == "sample" else votes)) ** 0.5
        if spread < 1e-9 and zero == "zero":
            out.append(0.0)
        else:
            out.append(value / (spread + eps))
    return np.array(out)


def linear_scan(values, decay):
    out, carry = [0.0] * len(values), 0.0
    for t in reversed(range(len(values))):
        carry = values[t] + (decay[t] * carry if t + 1 < len(values) else 0.0)
        out[t] = carry
    return np.array(out)


def gae(rewards, values, following, links, gamma, lam):
    out, carry = [0.0] * len(rewards), 0.0
    for t in reversed(range(len(rewards))):
        delta = rewards[t] + gamma * following[t] - values[t]
        carry = delta + (gamma * lam * carry if links[t] and t + 1 < len(rewards) else 0.0)
        out[t] = carry
    return np.array(out)


def segment_sums(values, starts, gamma):
    sums, lengths = [], []
    for t, value in enumerate(values):
        if starts[t]:
            sums.append(0.0)
            lengths.append(0)
        sums[-1] += gamma ** lengths[-1] * value
        lengths[-1] += 1
    return np.array(sums), np.array(lengths)


def children(parent):
    return [[c for c, p in enumerate(parent) if p == node] for node in range(len(parent))]


def up(parent, node):
    path = []
    while node >= 0:
        path.append(node)
        node = parent[node]
    return path


def leaves(parent):
    below = children(parent)

    def under(node):
        return [node] if not below[node] else [leaf for child in below[node] for leaf in under(child)]

    return [under(node) for node in range(len(parent))]


def subtree_sum(parent, values):
    return np.array([sum(values[d] for d in range(len(parent)) if n in up(parent, d)) for n in range(len(parent))])


def children_mean(parent, values):
    below = children(parent)

    def value(node):
        return values[node] if not below[node] else statistics.fmean(value(c) for c in below[node])

    return np.array([value(node) for node in range(len(parent))])


def whiten(values, weights):
    rows = [v for v, w in zip(values, weights, strict=True) for _ in range(w)]
    if not rows:
        return np.zeros(len(values))
    mean = statistics.fmean(rows)
    variance = statistics.variance(rows) if len(rows) > 1 else 1.0
    return np.array([(v - mean) / (variance + 1e-8) ** 0.5 if w else 0.0 for v, w in zip(values, weights, strict=True)])


def history_keys(group, anchor, parent, k):
    """Key of each turn's last k states, None where the path is shorter."""
    keys = []
    for turn in range(len(group)):
        path = up(parent, turn)[:k]
        keys.append(None if len(path) < k else (group[turn], *(anchor[t] for t in path)))
    return keys
