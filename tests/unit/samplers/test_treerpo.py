"""A full tree of segments of a fixed length."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.fixtures.sampler_cases import Trap, check_budgets, check_repeatable, roll, spec, wander
from verl_hier.errors import RecipeError
from verl_hier.host.options import build_options
from verl_hier_plugins.samplers.treerpo import TreeRPOSampler, TreeRPOSamplerOptions


def make(**options):
    chosen = {"children": 2, "depth": 2, "segment_tokens": 3, **options}
    return lambda: TreeRPOSampler(TreeRPOSamplerOptions(**chosen))


def right(prompt, sampling):
    return "right"


def test_every_segment_has_the_same_number_of_children():
    graph = roll(make(children=3, depth=3)(), answer=right, n=27)
    paths = [graph.path(e.id) for e in graph.complete()]
    assert len(paths) == 27 and not graph.short
    # A turn has two tokens; the tree branches behind tokens 3 and 6 of a path.
    for cut, siblings in ((3, 9), (6, 3)):
        through = Counter()
        for path in paths:
            tokens = [node for node in path for _ in graph.nodes[node].action]
            through[tokens[cut - 1]] += 1
        assert set(through.values()) == {siblings}


def test_paths_that_end_early_have_no_children():
    graph = roll(make(segment_tokens=100)(), answer=right, n=4)
    assert len(list(graph.complete())) == 2 and not graph.short


def test_the_same_seed_makes_the_same_tree_and_budgets_hold():
    check_repeatable(make(), n=4)
    check_budgets(make(), n=4)
    roll(make()(), answer=wander, n=4, environment=lambda: Trap(4))


def test_n_is_that_of_a_full_tree():
    registered = spec("treerpo")
    assert registered.episodes(TreeRPOSamplerOptions(), 512) == 512
    with pytest.raises(RecipeError, match="n must be 512; got 8"):
        registered.episodes(TreeRPOSamplerOptions(), 8)
    with pytest.raises(RecipeError, match="children must be at least 2"):
        build_options(registered, {"children": 1})
