"""Kernels on trees given as parent ids: no node objects, no recursion, no loop over nodes.

Shapes: T nodes; `parent` (T,) int64 holds the row of the parent, -1 for the first node of a tree. Rows may come in any
order. Sums from the root use pointer doubling (logarithm of the depth); sums towards the root take one numpy call for
each depth.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import ArrayLike

from verl_hier.credit.groups import Bools, Floats, Ints, group_ids
from verl_hier.errors import CreditError


def check_parents(parent: ArrayLike) -> Ints:
    """`parent` as int64, refused when an entry is out of range.

    Raises:
        CreditError: for a parent below -1 or at least T.
    """
    ids = np.asarray(parent).astype(np.int64, copy=False)
    if ids.size and (ids.min() < -1 or ids.max() >= ids.size):
        raise CreditError(f"parent ids must be in -1..{ids.size - 1}, found {ids.min()} and {ids.max()}.")
    return ids


def path_sum(parent: ArrayLike, values: ArrayLike) -> Floats:
    """(T,) sum of `values` (T,) over each node and its ancestors.

    Raises:
        CreditError: when the links form a cycle.
    """
    up = check_parents(parent)
    total = np.array(values, np.float64)
    for _ in range(up.size.bit_length() + 1):
        inner = up >= 0
        if not inner.any():
            return total
        above = np.where(inner, up, 0)
        total = total + np.where(inner, total[above], 0.0)
        up = np.where(inner, up[above], -1)
    if (up >= 0).any():
        raise CreditError("parent ids form a cycle.")
    return total


def depths(parent: ArrayLike) -> Ints:
    """(T,) number of ancestors of each node."""
    ids = check_parents(parent)
    return np.rint(path_sum(ids, np.ones(ids.size))).astype(np.int64) - 1


def levels_up(parent: Ints) -> Iterator[Ints]:
    """Node rows depth by depth, the deepest first, the first nodes left out."""
    depth = depths(parent)
    order = np.argsort(depth, kind="stable")
    bounds = np.cumsum(np.bincount(depth))
    for level in range(len(bounds) - 1, 0, -1):
        yield order[bounds[level - 1] : bounds[level]]


def subtree_sum(parent: ArrayLike, values: ArrayLike) -> Floats:
    """(T,) sum of `values` (T,) over each node and everything below it."""
    ids = check_parents(parent)
    total = np.array(values, np.float64)
    for nodes in levels_up(ids):
        np.add.at(total, ids[nodes], total[nodes])
    return total


def children_count(parent: ArrayLike) -> Ints:
    """(T,) number of children of each node."""
    ids = check_parents(parent)
    return np.bincount(ids[ids >= 0], minlength=ids.size).astype(np.int64)


def is_leaf(parent: ArrayLike) -> Bools:
    """(T,) true for nodes without children."""
    return children_count(parent) == 0


def children_mean(parent: ArrayLike, values: ArrayLike, votes: ArrayLike | None = None) -> Floats:
    """(T,) value of a node as the mean of its children's values, from the leaves up.

    Args:
        parent: (T,) parent ids.
        values: (T,) float; only those of leaves are read.
        votes: (T,) non-negative weight of each node among its siblings; one vote each when omitted. A node whose
            children have no vote gets 0.
    """
    ids = check_parents(parent)
    weight = np.ones(ids.size) if votes is None else np.asarray(votes, np.float64)
    inner = ids >= 0
    sums = np.bincount(ids[inner], weight[inner], ids.size)
    share = np.divide(weight, sums[ids], out=np.zeros(ids.size), where=inner & (sums[ids] > 0))
    total = np.where(is_leaf(ids), np.asarray(values, np.float64), 0.0)
    for nodes in levels_up(ids):
        np.add.at(total, ids[nodes], total[nodes] * share[nodes])
    return total


def under_tasks(parent: ArrayLike, group: ArrayLike) -> tuple[Ints, Ints]:
    """Trees of one task as one tree: a node for each task above its first nodes.

    Args:
        parent: (T,) parent ids.
        group: (T,) task of each node, any labels.

    Returns:
        (T + G,) parent ids whose last G rows are the tasks, in the order of their labels; and (T,) the row of each
        node's task.
    """
    ids = check_parents(parent)
    task = ids.size + group_ids(group)
    tasks = int(task.max()) + 1 - ids.size if ids.size else 0
    return np.concatenate([np.where(ids >= 0, ids, task), np.full(tasks, -1, np.int64)]), task


def above(parent: ArrayLike, values: ArrayLike, roots: ArrayLike = 0.0) -> Floats:
    """(T,) the parent's value; `roots` (a number or (T,)) for first nodes."""
    ids = check_parents(parent)
    data = np.asarray(values, np.float64)
    if ids.size == 0:
        return np.zeros(0)
    return np.where(ids >= 0, data[np.maximum(ids, 0)], roots)


def node_difference(parent: ArrayLike, values: ArrayLike, roots: ArrayLike = 0.0) -> Floats:
    """(T,) value of each node minus its parent's; `roots` stands above the first nodes."""
    return np.asarray(values, np.float64) - above(parent, values, roots)


def sibling_ids(parent: ArrayLike, group: ArrayLike) -> Ints:
    """(T,) group numbers of siblings: nodes of one parent, and the first nodes of one task (`group` (T,))."""
    ids = check_parents(parent)
    return group_ids(ids, np.where(ids >= 0, -1, np.asarray(group)))


def inherit_zero(parent: ArrayLike, values: ArrayLike) -> Floats:
    """(T,) values where a 0 is replaced by the value of the nearest ancestor that is not 0, if there is one."""
    up = check_parents(parent)
    result = np.array(values, np.float64)
    for _ in range(up.size.bit_length() + 1):
        open_ = (result == 0) & (up >= 0)
        if not open_.any():
            break
        over = np.maximum(up, 0)
        result, up = np.where(open_, result[over], result), np.where(open_, up[over], up)
    return result


def run_starts(parent: ArrayLike, *columns: ArrayLike) -> Ints:
    """(T,) first node of the run that each node belongs to: nodes on one way up that agree in all columns, such as the
    turns of an agent that make one message, or the turns of all agents in one step."""
    ids = check_parents(parent)
    kind = group_ids(*columns)
    inside = (ids >= 0) & (kind[ids] == kind)
    up, found = np.where(inside, ids, -1), np.arange(ids.size)
    for _ in range(ids.size.bit_length() + 1):
        open_ = up >= 0
        if not open_.any():
            break
        over = np.where(open_, up, 0)
        found, up = np.where(open_, found[over], found), np.where(open_, up[over], -1)
    return found
