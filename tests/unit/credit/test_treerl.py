"""TreeRL's credit against the released computation, written out node by node on the full tree.

THUDM/TreeRL scores every leaf of all trees against the others, sums the scores up the tree, then draws the leaves to
train, and divides each sum by the root of the number of drawn leaves below the node.
"""

import math
import random

import numpy as np
import pytest

from verl_hier.testing import credit_of, make_table

TREES, BRANCH_POINTS, BRANCHES, CORRECT, KEPT = 6, 2, 2, 6, 16
DAMPING = {"sqrt": math.sqrt, "uniform": float, "none": lambda kept: 1.0}


def forest(rng):
    """Parents of 6 trees: a trunk with two branch points, two further leaves at each."""
    parent = []
    for _ in range(TREES):
        above = len(parent)
        parent.append(-1)
        for _ in range(BRANCH_POINTS):
            trunk = len(parent)
            parent += [above] * (1 + BRANCHES)
            above = trunk
    returns = [1.0] * CORRECT + [0.0] * (TREES * (1 + BRANCH_POINTS * BRANCHES) - CORRECT)
    rng.shuffle(returns)
    return parent, returns


def kept_leaves(rng, returns):
    """One correct leaf, if there is one, and others at random."""
    order = rng.sample(range(len(returns)), len(returns))
    first = next((leaf for leaf in order if returns[leaf]), order[0])
    return {first, *[leaf for leaf in order if leaf != first][: KEPT - 1]}


def released(parent, returns, kept, damping="sqrt", centre="none", tokens=None):
    """Credit of every node that a kept leaf passes, by walks over the tree; the task is node -1."""
    leaves = [node for node in range(len(parent)) if node not in parent]
    below = {node: [] for node in range(-1, len(parent))}
    for number, leaf in enumerate(leaves):
        node = leaf
        while node >= 0:
            below[node].append(number)
            node = parent[node]
        below[-1].append(number)
    score = [r - (sum(returns) - r) / (len(returns) - 1) for r in returns]
    total = {node: sum(score[leaf] for leaf in below[node]) for node in below}
    if centre != "none":
        length = {node: 1 if tokens is None else (0 if node < 0 else tokens[node]) for node in below}
        mean = sum(total[n] * length[n] for n in below) / sum(len(below[n]) * length[n] for n in below)
        total = {node: total[node] - mean * len(below[node]) for node in below}
    value = {}
    for node in below:
        drawn = len(kept.intersection(below[node]))
        value[node] = total[node] / (DAMPING[damping](drawn) if drawn else 1.0) / len(below[node])
    credit = {}
    for leaf in kept:
        path = [leaves[leaf]]
        while parent[path[0]] >= 0:
            path.insert(0, parent[path[0]])
        before = None
        for node in path:
            difference = value[node] - value[parent[node]]
            before = before if before is not None and abs(difference) < 1e-8 else difference
            credit[node] = before + value[node]
    return credit


def table_of(parent, returns, kept, **turns):
    trained = np.isin(np.arange(len(returns)), sorted(kept))
    table = make_table({"parent": parent, **turns}, episodes={"return": returns})
    table.episodes["trained"], table.episodes["withheld"] = trained, ~trained
    table.turns["trained"] = np.bincount(table.step_turn, trained[table.step_episode]) > 0
    return table


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("damping", DAMPING)
@pytest.mark.parametrize("centre", ["none", "step", "token"])
def test_credit_is_that_of_the_full_tree(seed, damping, centre):
    rng = random.Random(seed)
    parent, returns = forest(rng)
    kept = kept_leaves(rng, returns)
    tokens = [rng.randint(1, 9) for _ in parent]
    table = table_of(parent, returns, kept, n_tokens=tokens)
    found = credit_of("treerl", table, damping=damping, centre=centre)
    expected = released(parent, returns, kept, damping, centre, tokens if centre == "token" else None)
    assert np.flatnonzero(table["trained"]).tolist() == sorted(expected)
    for turn in range(len(parent)):
        assert found[turn] == pytest.approx(expected.get(turn, 0.0), abs=1e-12)


def test_leaves_that_were_not_kept_matter():
    """What kept leaves alone tell of the branches differs: in over a fifth of the cases even by its sign."""
    differs = compared = 0
    for seed in range(200):
        rng = random.Random(seed)
        parent, returns = forest(rng)
        kept = kept_leaves(rng, returns)
        table = table_of(parent, returns, kept)
        whole = credit_of("treerl", table)
        table.episodes["withheld"][:] = False
        part = credit_of("treerl", table)
        shared = table["trained"] & (table["leaves"] > 1)
        differs += int((np.sign(whole) != np.sign(part))[shared].sum())
        compared += int(shared.sum())
    assert differs / compared > 0.2


def test_evaluation_is_no_leaf():
    parent, returns = [-1, -1, -1], [1.0, 0.0, 1.0]
    table = table_of(parent, returns, {0, 1})
    assert credit_of("treerl", table)[:2].tolist() != [2.0, -2.0]
    table.episodes["withheld"][:] = False
    assert credit_of("treerl", table).tolist() == [2.0, -2.0, 0.0]
