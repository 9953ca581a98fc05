"""What the check says the tree engine would save is what rows of that form share."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from tests.fixtures.sampler_cases import roll, spec
from verl_hier.host.options import build_options
from verl_hier.recipe.composed import ComposedRecipe
from verl_hier.recipe.sharing import ExpectedSharing, expected_sharing
from verl_hier.training.sharing import Sharing


@pytest.mark.parametrize(("rows", "roots"), [(1, 1), (8, 8), (8, 3), (5, 1)])
def test_the_estimate_counts_rows_of_its_form(rows: int, roots: int) -> None:
    rng = np.random.default_rng(0)
    prompt = rng.integers(0, 1000, 30)
    made = [np.concatenate([prompt, rng.integers(0, 1000, 80)]) for _ in range(roots)]
    # Each goes on with a token of its own, so that no two rows share more than half of a response.
    made += [np.concatenate([made[0][:70], np.full(40, 1000 + number)]) for number in range(rows - roots)]
    assert ExpectedSharing((5, 30), 80, rows, roots, asked_for=False).counts(30) == Sharing.of(made)


@pytest.mark.parametrize(
    ("name", "given", "n"),
    [
        ("anchored", {}, 6),
        ("at2po", {"chains": 3, "rounds": 2, "turns": 2}, 6),
    ],
)
def test_samplers_begin_as_often_as_they_say(name: str, given: dict[str, Any], n: int) -> None:
    sampler = spec(name)
    options = build_options(sampler, given)
    assert sampler.roots is not None
    for seed in range(3):
        graph = roll(sampler.factory(options), n=n, seed=seed)
        leaves = [episode for episode in graph.complete() if episode.trained]
        assert len({graph.path(leaf.id)[0] for leaf in leaves}) == sampler.roots(options, n) < len(leaves)


@pytest.mark.parametrize(
    ("recipe", "overrides", "counts"),
    [
        ("grpo_alfworld", [], (8, 8)),
        ("himac_alfworld", [], (8, 8)),
        ("arpo_alfworld", [], (8, 8)),
        ("treerl_alfworld", [], (8, 2)),
        ("tree_grpo_alfworld", ["hier.sampler.trees=3", "actor_rollout_ref.rollout.n=9"], (9, 3)),
    ],
)
def test_the_estimate_of_a_recipe(recipe: str, overrides: list[str], counts: tuple[int, int]) -> None:
    found = expected_sharing(ComposedRecipe.named(recipe, overrides))
    assert (found.rows, found.roots, found.prompts[1], found.response) == (*counts, 192, 512)
    assert 1 <= found.prompts[0] < 20, "the words of the template are no tokens of a world"


def test_what_it_says_of_the_engine() -> None:
    stock = str(expected_sharing(ComposedRecipe.named("treerl_alfworld")))
    tree = str(expected_sharing(ComposedRecipe.named("treerl_alfworld", ["engine=tree"])))
    assert stock.startswith("engine: tree would forward 0.49 to 0.6")
    assert tree == stock.replace("would forward", "forwards")
    assert re.search(r"8 row\(s\) a task share a prompt of \d+ to 192 tokens", stock)
    assert stock.endswith("before responses of 512, 6 of them with the first half of another one's")
