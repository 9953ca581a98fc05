"""Rewards of the recipes that follow a paper, against outputs of the authors' functions (fixtures/authors_cases).

A case goes through the environment and the reward functions that the composed recipe names.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from verl_hier.recipe.compose import compose
from verl_hier.recipe.composed import ComposedRecipe
from verl_hier.rollout.rewards import RatedEpisode, RatedTurn
from verl_hier_plugins.environments.search.episode import Episode

CASES = Path(__file__).parents[2] / "fixtures" / "authors_cases"
SEARCH = {
    "arpo_reward": "arpo_search",
    "branpo_reward": "branpo_search",
    "evolver_reward": "evolver_search",
    "igpo_reward": "igpo_search",
    "tree_grpo_reward": "tree_grpo_search",
}


@cache
def at_node(recipe: str, *overrides: str) -> ComposedRecipe:
    return ComposedRecipe.of(OmegaConf.to_container(compose(recipe, ["size=node", *overrides]), resolve=True))


def cases(name: str) -> list[dict[str, Any]]:
    return json.loads((CASES / f"{name}.json").read_text("utf-8"))


def reward(recipe: ComposedRecipe, texts: list[str], truth: str) -> float:
    """The return of a conversation: what the environment and the worker give, and all that `hier.rewards` adds."""
    task = {"question": "which city?", "answers": [truth]}
    world = Episode(recipe.parts.environment.options)
    world.begin(task, ["local"])
    turns, total = [], 0.0
    role = next(iter(recipe.parts.worker.spec.levels(recipe.parts.worker.options)))
    for number, text in enumerate(texts):
        step = world.take(text)
        given = getattr(step, "reward", 0.0)
        total += given
        turns.append(RatedTurn(task, role, role, 0, number, (), text, getattr(step, "valid", True), given, {}))
    episode = RatedEpisode(task, tuple(turns), total, None, False)
    rewards = recipe.rewards.values()
    return total + sum(each.weight * each.function(episode, **each.options) for each in rewards)


@pytest.mark.parametrize(("kind", "case"), [(k, c) for k in SEARCH for c in cases(k)], ids=lambda v: str(v)[:40])
def test_the_composed_recipe_rewards_as_its_authors(kind: str, case: dict[str, Any]) -> None:
    texts = case.get("turns") or [case["text"]]
    assert reward(at_node(SEARCH[kind]), texts, case["truth"]) == pytest.approx(case["theirs"])


WITHOUT = ("~hier.rewards.answer", "hier.environment.reward=em")
OTHERS = {"evolver_reward": ("~hier.rewards.form", "hier.environment.reward=f1", "hier.rewards.form.weight=0.2")}


@pytest.mark.parametrize(("kind", "line"), [(kind, line) for kind in SEARCH for line in OTHERS.get(kind, WITHOUT)])
def test_a_recipe_without_its_reward_fails_a_case(kind: str, line: str) -> None:
    recipe = at_node(SEARCH[kind], line)
    got = [reward(recipe, case.get("turns") or [case["text"]], case["truth"]) for case in cases(kind)]
    assert got != pytest.approx([case["theirs"] for case in cases(kind)])


@pytest.mark.parametrize("recipe", ["aepo_search", "at2po_search"])
def test_words_that_are_half_right_have_nothing_without_both_tools(recipe: str) -> None:
    half = "<think>b</think><answer>Paris city in France</answer>"
    assert reward(at_node(recipe), ["<think>a</think><search>q</search>", half], "Paris") == 0.0
    used = ["<think>a</think><search>q</search>", "<think>a</think><python>q</python>", half]
    assert reward(at_node(recipe), used, "Paris") == pytest.approx(0.5)
    assert reward(at_node(recipe), [half.replace("</think>", "")], "Paris") == -1.0


def test_the_search_recipes_compare_words_as_squad_does() -> None:
    for recipe in ("tree_grpo_search", "branpo_search"):
        formed = ["<think>a</think><answer>A.</answer>"]
        assert reward(at_node(recipe), formed, "the") == 1.0
