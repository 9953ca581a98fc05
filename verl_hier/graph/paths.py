"""Paths and token chains of many episodes at once, on arrays: no step of the interpreter for each turn.

Shapes: M nodes of all graphs, one graph after the other; E episodes; S steps, one for each node on each episode's path.
All numbers count over all graphs; -1 means none.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Paths:
    """The nodes of each episode, first one first.

    Attributes:
        start: (E,) first step of each episode.
        episode: (S,) place of the episode of each step; sorted.
        node: (S,) node of each step.
        place: (S,) 0-based place of the step in its episode, which is the number of nodes above its node.
    """

    start: Ints
    episode: Ints
    node: Ints
    place: Ints


def paths_to(leaves: Ints, parent: Ints) -> Paths:
    """The paths to some nodes.

    Args:
        leaves: (E,) last node of each path.
        parent: (M,) node before each node, a smaller number, or -1.

    Nodes that follow their parent in number are walked in one stride, so that the time is that of the steps and of the
    branches on a path.
    """
    numbers = np.arange(len(parent))
    begins = parent != numbers - 1
    begins[:1] = True  # the parent of node 0 is none, which is also the number before 0
    stride = np.flatnonzero(begins)[np.cumsum(begins) - 1]
    episode, node = np.arange(len(leaves)), np.asarray(leaves, np.int64)
    strides = [(episode[:0], node[:0], node[:0])]
    while len(node):
        first = stride[node]
        strides.append((episode, first, node + 1 - first))
        node = parent[first]
        episode, node = episode[node >= 0], node[node >= 0]
    # The last stride of the walk is the first one of a path.
    owner, first, length = (np.concatenate(each[::-1]) for each in zip(*strides, strict=True))
    order = np.argsort(owner, kind="stable")
    owner, first, length = owner[order], first[order], length[order]
    ends = np.cumsum(length)
    steps = np.arange(ends[-1] if len(ends) else 0)
    of_step = np.repeat(owner, length)
    start = np.searchsorted(of_step, np.arange(len(leaves)))
    return Paths(start, of_step, np.repeat(first - ends + length, length) + steps, steps - start[of_step])


def chain_numbers(paths: Paths, context: Ints, group: Ints) -> Ints:
    """The number of the token chain in which each step comes up first; see `rows.chains`, which finds them one by one.

    Args:
        paths: of the complete episodes, in the order in which episodes own shared turns.
        context: (M,) node whose tokens each node continues, or -1; it lies on every path of the node.
        group: (E,) graph of each episode; sorted. Chains are numbered from 0 in each graph, those of an episode that
            start anew before those that continue a context a second time.

    Returns:
        (S,) numbers; a node that several episodes share may have several, of which the first one counts.
    """
    steps = np.arange(len(paths.node))
    depth = np.zeros(len(context), np.int64)
    depth[paths.node] = paths.place
    before = context[paths.node]
    continues = before >= 0
    previous = np.where(continues, paths.start[paths.episode] + depth[before], -1)
    first = np.full(len(steps) + 1, -1)
    _set_first(first, previous[continues], steps[continues])
    follows = continues & (first[previous] == steps)
    root = _roots(np.where(follows, previous, steps))
    heads, tails = ~continues, continues & ~follows
    episodes = len(paths.start)
    head_count = np.bincount(paths.episode[heads], minlength=episodes)
    count = head_count + np.bincount(paths.episode[tails], minlength=episodes)
    number = np.zeros(len(steps), np.int64)
    number[heads] = _rank(paths.episode[heads], episodes)
    number[tails] = head_count[paths.episode[tails]] + _rank(paths.episode[tails], episodes)
    offset = np.cumsum(count) - count
    offset -= offset[np.searchsorted(group, group)] if episodes else 0
    found: Ints = number[root] + offset[paths.episode]
    return found


def first_of(keys: Ints, values: Ints, size: int) -> Ints:
    """(size,) the first of the values of each key, -1 for keys without one."""
    found = np.full(size, -1)
    _set_first(found, keys, values)
    return found


def _set_first(target: Ints, keys: Ints, values: Ints) -> None:
    target[keys[::-1]] = values[::-1]  # of several values for a key numpy keeps the last one


def _rank(owner: Ints, owners: int) -> Ints:
    """The place of each entry among those of its owner; `owner` is sorted."""
    count = np.bincount(owner, minlength=owners)
    ranks: Ints = np.arange(len(owner)) - (np.cumsum(count) - count)[owner]
    return ranks


def _roots(link: Ints) -> Ints:
    """The last entry that the links lead to; an entry that links to itself ends them."""
    while True:
        further = link[link]
        if np.array_equal(further, link):
            return link
        link = further
