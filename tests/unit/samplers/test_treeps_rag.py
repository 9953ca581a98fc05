"""One tree a task: searches branch, answers end, a layer keeps searches that found different documents."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fixtures.sampler_cases import Trap, check_budgets, check_repeatable, roll, spec, wander
from verl_hier.environments.base import Environment, StepResult
from verl_hier.errors import RecipeError
from verl_hier.graph import build_table
from verl_hier.host.options import build_options
from verl_hier.testing import credit_of
from verl_hier_plugins.samplers.treeps_rag import Search, TreePSRAGSampler, TreePSRAGSamplerOptions, diverse, jaccard

SHELF = {
    "red": ["apple", "brick"],
    "scarlet": ["apple", "brick"],
    "green": ["leaf", "frog"],
    "mixed": ["apple", "leaf"],
}


class Library(Environment):
    """Colours find things; `answer` ends, and wins once a frog was found."""

    def reset(self, task: Mapping[str, Any], seed: int) -> StepResult:
        self._found: set[str] = set()
        return StepResult("ask")

    def step(self, action: str) -> StepResult:
        if action == "answer":
            won = "frog" in self._found
            return StepResult("end", float(won), True, info={"won": won, "documents": []})
        self._found |= set(SHELF[action])
        return StepResult(" ".join(SHELF[action]), info={"won": False, "documents": SHELF[action]})


def make(**options):
    return lambda: TreePSRAGSampler(TreePSRAGSamplerOptions(**options))


def ask(prompt: str, sampling) -> str:
    """A colour or an answer by the seed of the request; always an answer in the third turn."""
    if prompt.count("<act>") > 2:
        return "answer"
    return random.Random(sampling.seed).choice([*SHELF, "answer"])


def in_order(words):
    """Says the words one after the other, then answers."""
    left = list(words)
    return lambda prompt, sampling: left.pop(0) if left else "answer"


def test_a_layer_keeps_searches_that_found_different_documents():
    graph = roll(make()(), n=2, environment=Library, answer=in_order(["red", "scarlet", "mixed", "green"]))
    assert [node.text for node in graph.nodes if node.turn == 0] == ["red", "scarlet", "mixed", "green"]
    assert {graph.episodes[i].error for i in (1, 2)} == {"similar"} and graph.counts["similar"] == 2
    kept = {graph.nodes[graph.path(e.id)[0]].text for e in graph.complete()}
    # Both go on twice and answer: four answers for two places.
    assert kept <= {"red", "green"} and graph.counts["surplus"] == 2 and not graph.short
    assert [node.turn for node in graph.nodes].count(1) == 4


def test_all_branches_are_one_tree_and_searches_alone_branch():
    graph = roll(make()(), n=8, environment=Library, answer=ask, seed=1)
    assert not graph.short and {e.tree for e in graph.episodes} == {0}
    parents = {node.parent for node in graph.nodes if node.parent >= 0}
    assert parents and all(graph.nodes[parent].text != "answer" for parent in parents)
    table = build_table([graph])
    assert (credit_of("treeps_rag", table) != 0).any()


def test_a_narrow_tree_grows_again_until_it_has_its_leaves():
    graph = roll(make(width=2)(), n=7, environment=Library, answer=ask, seed=3)
    waves = {e.decision.get("wave") for e in graph.episodes}
    assert not graph.short and sum(1 for _ in graph.complete()) == 7 and max(w for w in waves if w is not None) > 0
    for wave in range(max(w for w in waves if w is not None) + 1):
        size = sum(node.turn == 0 and node.decision.get("wave", 0) == wave for node in graph.nodes)
        assert size <= 4


def test_words_are_compared_where_no_documents_are_named():
    a, b, c = (Search(frozenset(), frozenset(text.split())) for text in ("go to bed", "go to town", "look"))
    assert a.similarity(b, "documents") == pytest.approx(2 / 4) and a.similarity(c, "documents") == 0
    found = Search(frozenset({"x"}), frozenset({"look"}))
    assert found.similarity(Search(frozenset({"x"}), frozenset({"go"})), "documents") == 1
    assert found.similarity(Search(frozenset({"x"}), frozenset({"go"})), "words") == 0
    assert found.similarity(c, "documents") == 1


def test_farthest_first_by_hand():
    found = [Search(frozenset(SHELF[name]), frozenset({name})) for name in ("red", "scarlet", "green", "mixed")]
    assert diverse(found, 2, "documents") == [0, 2]
    assert diverse(found, 3, "documents") == [0, 2, 3]
    assert diverse(found, 2, "words") == [0, 1]
    assert diverse(found, 9, "documents") == [0, 1, 2, 3] and diverse(found, 0, "documents") == []


SETS = st.frozensets(st.sampled_from("abcde"), max_size=4)


@given(st.lists(SETS, min_size=1, max_size=8), st.integers(1, 8))
def test_nothing_is_kept_twice_while_something_else_is_left(sets, number):
    searches = [Search(frozenset(), words) for words in sets]
    kept = diverse(searches, number, "words")
    assert kept == sorted(set(kept)) and len(kept) == min(number, len(sets))
    assert len({sets[place] for place in kept}) >= min(number, len(set(sets)))
    assert all(0 <= jaccard(a, b) <= 1 and jaccard(a, a) == 1 for a in sets for b in sets)


def test_a_broken_world_costs_its_own_branch():
    graphs = [roll(make()(), answer=wander, n=4, seed=s, environment=lambda: Trap(3)) for s in range(10)]
    lost = [graph for graph in graphs if any(e.status == "failed" for e in graph.episodes)]
    assert len(lost) > 5 and all(not graph.short for graph in lost)


def test_a_world_that_never_works_ends_the_tree():
    graph = roll(make()(), answer=lambda prompt, sampling: "jump", n=4, environment=lambda: Trap(3))
    assert graph.short and {e.status for e in graph.episodes} == {"failed"} and len(graph.episodes) == 8


def test_the_same_seed_makes_the_same_tree():
    check_repeatable(make(width=2), n=4)
    check_repeatable(make(branch=3), n=3)


def test_budgets():
    check_budgets(make(), n=4)


def test_what_cannot_work_is_refused():
    registered = spec("treeps_rag")
    assert registered.needs_fork and registered.episodes(build_options(registered, {}), 8) == 8
    with pytest.raises(RecipeError, match=r"actor_rollout_ref.rollout.n: .* n >= 2; got 1"):
        registered.episodes(build_options(registered, {}), 1)
    with pytest.raises(RecipeError, match=r"branch must be at least 2"):
        build_options(registered, {"branch": 1})
    with pytest.raises(RecipeError, match=r"width: must be at least 1"):
        build_options(registered, {"width": 0})
    with pytest.raises(RecipeError, match=r"hier.sampler.similarity: 'titles' is not one of"):
        build_options(registered, {"similarity": "titles"})
