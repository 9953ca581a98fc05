"""A recipe's rollouts: its limits, its budget in training alone, its sampler, its rewards, and policies beside it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from tests.fixtures.corridor import Corridor
from tests.unit.recipe.test_rules_at_bounds import base, recipe, spec_of
from tests.unit.rollout.test_turns import Asked
from verl_hier.environments.pool import EnvironmentPool
from verl_hier.errors import RecipeError, RolloutError
from verl_hier.graph import RolloutGraph
from verl_hier.host.part import Part
from verl_hier.host.specs import EnvironmentSpec, NoOptions
from verl_hier.recipe.composed import ComposedRecipe
from verl_hier.recipe.policies import PolicyOptions
from verl_hier.recipe.rewards import check_rewards, rewards_of
from verl_hier.recipe.runner import RolloutRunner
from verl_hier.rollout import Limits, Request, Rollout, Sampler
from verl_hier.rollout.budget import BudgetOptions
from verl_hier.rollout.plain_renderer import PlainRenderer
from verl_hier.rollout.rewards import Reward, RewardOptions
from verl_hier.rollout.unfinished import UnfinishedEpisode
from verl_hier.testing.rollout import InlinePool, WordTokenizer
from verl_hier_plugins.workers.react import React, ReactOptions


class Two(Sampler):
    async def sample(self, rollout: Rollout) -> None:
        for _ in range(2):
            await rollout.start(mine=True).run()


def small(lines: Mapping[str, Any], **further: Any) -> ComposedRecipe:
    """Agents that walk along a corridor of three steps, two of them."""
    react = base("grpo_alfworld").parts.worker.spec
    mine = replace(base().parts.sampler.spec, factory=lambda options: Two())
    world = EnvironmentSpec("corridor", lambda options: Corridor(3), says_won=True)
    parts = {
        "worker": Part(react, ReactOptions()),
        "sampler": Part(mine, NoOptions()),
        "environment": Part(world, NoOptions()),
    }
    made = recipe({"hier.seed": 3, "hier.rollout.budget": BudgetOptions(), **lines}, **parts)
    return replace(made, **further)


def played(made: ComposedRecipe, request: Mapping[str, Any] | None = None, **given: Any) -> RolloutGraph:
    """Everybody says `right`; with `opens=(name, word)` the policy of that name says the word."""
    tokenizer = WordTokenizer()
    name, word = given.pop("opens", (None, ""))
    other = None if name is None else {name: Asked(tokenizer, lambda prompt, sampling: word)}.get
    runner = RolloutRunner(made, PlainRenderer(tokenizer), 99, given.pop("limits", None), opens=other)
    asked = Request({"instruction": "go"}, {"uid": "u", "index": 0}, **{"n": 2, **(request or {})})
    policy = Asked(tokenizer, lambda prompt, sampling: "right")
    return asyncio.run(runner.roll_out(asked, policy, InlinePool(lambda: Corridor(3)), **given))


def test_training_has_the_recipes_sampler_and_budget_and_validation_neither() -> None:
    whole = played(small({}))
    assert [len(whole.path(each.id)) for each in whole.episodes] == [3, 3] and whole.seed == 3
    assert all(each.decision == {"mine": True} and each.success for each in whole.episodes)
    limited = {"hier.rollout.budget": BudgetOptions(turns=4)}
    assert len(played(small(limited)).nodes) == 4
    validated = played(small(limited), {"validate": True, "n": 3})
    assert [len(validated.path(each.id)) for each in validated.episodes] == [3, 3, 3]
    assert not any("mine" in each.decision for each in validated.episodes) and validated.budget == {}
    assert len(played(small(limited), {"validate": True}, sampler=Two()).episodes) == 2


def test_an_episode_has_the_limits_that_are_given_or_the_recipes() -> None:
    short = {"hier.rollout.max_turns": 2}
    assert {len(played(small(short)).path(number)) for number in (0, 1)} == {2}
    other = played(small(short), limits=Limits(max_turns=1))
    assert {len(other.path(number)) for number in (0, 1)} == {1}


def test_rewards_of_the_recipe_are_added() -> None:
    rewards = {"mine": Reward(lambda episode: 0.25, 2.0, "episode", (), (), {})}
    plain, paid = played(small({})), played(small({}, rewards=rewards))
    assert [each.ret for each in paid.episodes] == [each.ret + 0.5 for each in plain.episodes]


def test_other_policies_are_opened_by_their_name() -> None:
    def named(name: str) -> ComposedRecipe:
        class Other(React):
            async def run(self, episode: Any) -> None:
                first = await episode.reset()
                context = episode.context(next(iter(spec.roles)), policy=name).observe(first.text)
                await episode.act((await episode.generate(context)).text)

        made = small({})
        spec = replace(made.parts.worker.spec, factory=lambda options: Other(options))
        return replace(made, parts=replace(made.parts, worker=Part(spec, ReactOptions())))

    with pytest.raises(RolloutError, match="asks for the policy 'other'; this run has default"):
        played(named("other"))
    graph = played(named("other"), opens=("other", "left"))
    assert {node.text for node in graph.nodes} == {"left"} and {node.policy for node in graph.nodes} == {"other"}
    assert {node.text for node in played(named("default"), opens=("other", "left")).nodes} == {"right"}


def test_an_episode_of_an_earlier_step_goes_on_with_the_policies_that_it_began_with() -> None:
    offered: list[list[int]] = []

    class Offered(Two):
        async def sample(self, rollout: Rollout) -> None:
            offered.append([each.step for each in rollout.unfinished])
            await super().sample(rollout)

    policies = {"other": PolicyOptions(roles=("agent",))}
    made = small({"hier.policies": policies, "hier.exchange_policies": 2})
    worker = replace(made.parts.worker.spec, roles={"agent": 0, "second": 1})
    sampler = replace(made.parts.sampler.spec, factory=lambda options: Offered())
    made = replace(
        made, parts=replace(made.parts, worker=Part(worker, ReactOptions()), sampler=Part(sampler, NoOptions()))
    )
    began = played(small({})).nodes[:1]
    left = tuple(UnfinishedEpisode(step, "", tuple(began)) for step in (1, 2, 3, 4, 5))
    for step in (5, 4):
        played(made, {"step": step, "unfinished": left})
    assert offered == [[1, 2, 5], [3, 4]]


@pytest.mark.parametrize(
    ("in_worker", "loads", "tools"), [(True, True, "tools"), (False, True, None), (True, False, None)]
)
def test_tools_are_loaded_where_the_world_runs_in_the_worker(
    monkeypatch: pytest.MonkeyPatch, in_worker: bool, loads: bool, tools: str | None
) -> None:
    given: list[Any] = []
    monkeypatch.setattr(EnvironmentPool, "of", lambda *arguments: given.append(arguments))
    made = recipe(
        {"hier.rollout.environment_processes": 5, "hier.rollout.time_limit_s": 7.0},
        **spec_of("environment", in_worker=in_worker),
    )
    RolloutRunner(made, SimpleNamespace(), 0, tools=(lambda: "tools") if loads else None).pool(2)  # type: ignore[arg-type, return-value]
    ((spec, options, processes, limit, asynchronous, process, loaded),) = given
    assert (spec, options) == (made.parts.environment.spec, made.parts.environment.options)
    assert (processes, limit, loaded) == (5, 7.0, tools) and process == made.hier.rollout.process
    assert asynchronous.calls_in_flight == made.hier.rollout.asynchronous.calls_in_flight // 2


# Reward functions


def rated(episode: Any, scale: float = 1.0) -> float:
    return scale


def careful(episode: Any, least: float) -> float:
    return least


def _refuse(options: Mapping[str, Any]) -> None:
    if options["least"] < 0:
        raise ValueError("least: it must be at least 0")


careful.check_options = _refuse  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("function", "options", "words"),
    [
        ("rated", {}, ""),
        ("rated", {"scale": 2.0}, ""),
        ("rated", {"scales": 2.0}, r"options: rated\(.*\) -> .* cannot be called with an episode"),
        ("careful", {}, "cannot be called"),
        ("careful", {"least": 0}, ""),
        ("careful", {"least": -1}, r"hier\.rewards\.mine\.options\.least: it must be"),
        ("nowhere", {}, r"hier\.rewards\.mine\.function"),
    ],
)
def test_a_reward_takes_its_options(function: str, options: dict[str, Any], words: str) -> None:
    named = RewardOptions(f"{__name__}:{function}", per="episode", weight=0.5, options=options)
    hier = replace(base().hier, rewards={"mine": named})
    if words:
        with pytest.raises(RecipeError, match=words):
            rewards_of(hier)
        return
    (reward,) = rewards_of(hier).values()
    assert (reward.weight, reward.per, dict(reward.options)) == (0.5, "episode", options)


def test_rewards_are_for_roles_of_the_worker() -> None:
    worker = spec_of("worker", active_roles=None, roles={"planner": 0, "executor": 1})["worker"]

    def reward(*roles: str) -> dict[str, Reward]:
        return {"mine": Reward(rated, 1.0, "episode", roles, (), {})}

    check_rewards(reward(), worker)
    check_rewards(reward("executor"), worker)
    with pytest.raises(
        RecipeError,
        match=r"mine\.roles: the worker .* has no role 'planer' \(did you mean 'planner'\?\); it has planner, executor",
    ):
        check_rewards(reward("executor", "planer"), worker)
    some = replace(worker, spec=replace(worker.spec, active_roles=lambda options: ["planner"]))
    with pytest.raises(RecipeError, match="no role 'executor'"):
        check_rewards(reward("executor"), some)
