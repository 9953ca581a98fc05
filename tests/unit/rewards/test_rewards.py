"""Reward functions: what they see, whom they credit, what is stored and logged, and what is refused."""

from __future__ import annotations

import asyncio
import dataclasses
import random

import pytest

from tests.fixtures.chat_endpoint import Endpoint
from tests.fixtures.corridor import Corridor
from verl_hier.errors import RecipeError, RolloutError
from verl_hier.graph import EpisodeRecord, RolloutGraph, build_table
from verl_hier.graph.columnar.light import light_of
from verl_hier.host.specs import NoOptions
from verl_hier.recipe.check import check_recipe
from verl_hier.recipe.compose import compose
from verl_hier.recipe.composed import ComposedRecipe
from verl_hier.rewards.formats import format_shaping, has_tags, matches, overlong, short, spared, valid
from verl_hier.rewards.judge import judge
from verl_hier.rollout.rewards import RatedEpisode, RatedTurn, Reward, rate
from verl_hier.testing.rollout import roll_out_scripted
from verl_hier.training.metrics import rollout_metrics
from verl_hier_plugins.samplers.independent import Independent
from verl_hier_plugins.samplers.nested import Nested, NestedOptions
from verl_hier_plugins.workers.planner_executor import PlannerExecutor, PlannerExecutorOptions

TASK = {"instruction": "reach the end"}


def wandering(prompt: str, sampling) -> str:
    if prompt.startswith("plan"):
        return "go ; go on"
    return "right" if random.Random(sampling.seed).random() < 0.7 or sampling.temperature == 0 else "left"


@pytest.fixture
def graph() -> RolloutGraph:
    """A planner's plans with their executions: a tree, in which planner turns are shared."""
    rolled, _ = asyncio.run(
        roll_out_scripted(
            environment=Corridor,
            worker=lambda: PlannerExecutor(PlannerExecutorOptions()),
            sampler=Nested(NestedOptions(plans=2)),
            answer=wandering,
            n=3,
        )
    )
    return rolled


def rated(graph: RolloutGraph, **rewards: Reward) -> RolloutGraph:
    asyncio.run(rate(graph, TASK, rewards))
    graph.check()
    return graph


def words(item: RatedTurn | RatedEpisode) -> float:
    return float(len(item.text.split()))


def test_an_episode_is_rated_at_its_last_turn(graph: RolloutGraph) -> None:
    before = {e.id: e.ret for e in graph.complete()}
    seen: list[RatedEpisode] = []

    def tenth(episode: RatedEpisode) -> float:
        seen.append(episode)
        return len(episode.turns) / 10

    rated(graph, turns=Reward(tenth, weight=0.5))
    for episode in graph.complete():
        length = len(graph.path(episode.id)) / 10
        assert episode.reward_info == {"turns": length}
        assert episode.ret == pytest.approx(before[episode.id] + 0.5 * length)
        assert graph.nodes[episode.leaf].extra["reward/turns"] == length
    assert all(episode.task == TASK and episode.turns[0].role == "planner" for episode in seen)
    assert {episode.success for episode in seen} <= {True, False} and seen[0].turns[-1].text == seen[0].text
    logged = rollout_metrics(light_of([graph]))
    expected = [len(graph.path(e.id)) / 10 for e in graph.complete()]
    assert logged["hier/reward/turns/mean"] == pytest.approx(sum(expected) / len(expected))


def test_turns_of_one_role_are_rated_once_each_and_by_their_mean(graph: RolloutGraph) -> None:
    asked: list[RatedTurn] = []

    def note(turn: RatedTurn) -> float:
        asked.append(turn)
        return words(turn)

    rewards = {n.id: n.reward for n in graph.nodes}
    rated(graph, wordy=Reward(note, weight=-0.1, per="turn", roles=("executor",)))
    reached = {i for e in graph.complete() for i in graph.path(e.id)}
    executor = [n for n in graph.nodes if n.role == "executor" and n.id in reached]
    assert len(asked) == len(executor) and {turn.role for turn in asked} == {"executor"}
    for node in graph.nodes:
        said = len(node.text.split()) if node in executor else 0
        assert node.reward == pytest.approx(rewards[node.id] - 0.1 * said)
    for episode in graph.complete():
        mine = [graph.nodes[i] for i in graph.path(episode.id)]
        assert episode.ret == pytest.approx(sum(n.reward for n in mine))
        scores = [n.extra["reward/wordy"] for n in mine if n.role == "executor"]
        assert episode.reward_info["wordy"] == pytest.approx(sum(scores) / len(scores))
    assert asked[0].messages[-1] == {"role": "assistant", "content": asked[0].text} and len(asked[0].messages) > 1
    table = build_table([graph])
    assert "reward/wordy" in table.turns, "an estimator may read it"


def test_an_episodes_reward_goes_to_the_roles_it_names_unless_their_turn_is_shared(graph: RolloutGraph) -> None:
    before = {n.id: n.reward for n in graph.nodes}
    owners = {n.id: sum(n.id in graph.path(e.id) for e in graph.complete()) for n in graph.nodes}
    rated(graph, plan=Reward(lambda episode: 1.0, roles=("planner",)))
    assert max(owners.values()) > 1, "the sampler makes turns that are shared"
    for episode in graph.complete():
        planner = graph.nodes[graph.path(episode.id)[0]]
        taker = planner if owners[planner.id] == 1 else graph.nodes[episode.leaf]
        assert taker.reward == pytest.approx(before[taker.id] + 1.0)


def test_functions_see_the_environments_rewards_alone(graph: RolloutGraph) -> None:
    returns = {e.id: e.ret for e in graph.complete()}
    seen: list[float] = []
    first = Reward(lambda episode: 5.0)
    second = Reward(lambda episode: seen.append(episode.ret) or 0.0)
    rated(graph, first=first, second=second)
    assert sorted(seen) == sorted(returns.values())


def test_coroutines_run_side_by_side_and_none_says_nothing(graph: RolloutGraph) -> None:
    running = most = 0

    async def slow(episode: RatedEpisode) -> float | None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)
        running -= 1
        return None

    before = [n.reward for n in graph.nodes]
    rated(graph, slow=Reward(slow))
    assert most == len({e.leaf for e in graph.complete()})
    assert [n.reward for n in graph.nodes] == before
    assert all(e.reward_info == {"slow": 0.0} for e in graph.complete())


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        (lambda episode: 1 / 0, "hier.rewards.bad: the reward function raised ZeroDivisionError"),
        (lambda episode: "much", "hier.rewards.bad: what the reward function returned has to be a number, got 'much'"),
        (lambda episode: "5", "has to be a number, got '5'"),
        (lambda episode: float("nan"), "is nan, which is no finite number"),
        (lambda episode: -1e9, r"is -1000000000.0, which is no finite number from -1e\+06 to 1e\+06"),
        (lambda episode: 10**400, "which is no finite number"),
    ],
)
def test_a_broken_function_is_one_sentence(graph: RolloutGraph, function, sentence: str) -> None:
    with pytest.raises(RolloutError, match=sentence):
        rated(graph, bad=Reward(function))


def test_lost_episodes_are_not_rated() -> None:
    lost = RolloutGraph({"uid": "x"}, episodes=[EpisodeRecord(0, status="failed")])
    assert rated(lost, any=Reward(words)).episodes[0].reward_info == {}


# ---- the shipped functions -------------------------------------------------------------------------------------------


def turn(text: str, **fields: object) -> RatedTurn:
    given = {"role": "agent", "agent": "agent", "level": 0, "number": 0, "valid": True, "reward": 0.0, "extra": {}}
    return RatedTurn(task=TASK, messages=({"role": "user", "content": "go"},), text=text, **{**given, **fields})


def test_format_checks() -> None:
    both = ["think", "action"]
    assert has_tags(turn("<think>a</think> <action>b</action>"), both) == 1.0
    assert has_tags(turn("<action>b</action><think>a</think>"), both) == 0.5
    assert has_tags(turn("<think>a</think><action>b</action><action>c</action>"), both) == 0.5
    assert has_tags(turn("</think>a<think>"), ["think"]) == 0.0
    assert matches(turn(" go to 1\n"), r"go to \d") == 1.0 and matches(turn("I go to 1"), r"go to \d") == 0.0
    assert (short(turn("x" * 10), 10), short(turn("x" * 15), 10), short(turn("x" * 30), 10)) == (1.0, 0.5, 0.0)
    episode = RatedEpisode(TASK, (turn("a"), turn("b", valid=False)), 0.0, None, False)
    assert (valid(turn("a")), valid(episode), matches(episode, "b")) == (1.0, 0.5, 1.0)
    assert (spared(turn("a"), 2), spared(episode, 8), spared(episode, 1)) == (1.0, 0.75, 0.0)
    role = episode.turns[0].role
    assert (spared(episode, 4, [role]), spared(episode, 4, ["nobody"])) == (0.5, 1.0)


def played(*texts: str, ret: float = 0.0, success: bool | None = False, tokens: int = 0) -> RatedEpisode:
    turns = tuple(turn(text, number=place, tokens=tokens) for place, text in enumerate(texts))
    return RatedEpisode(TASK, turns, ret, success, truncated=False)


LOOK, SAY = "<think>where</think>\n<search>lake</search>", "<think>there</think><answer>blue</answer>"


@pytest.mark.parametrize(
    ("texts", "right", "wrong"),
    [
        ((LOOK, SAY), 0.0, 0.2),
        ((SAY,), 0.0, 0.2),
        ((LOOK, "<answer>blue</answer>"), -0.2, 0.1),  # no thoughts
        ((SAY, SAY), -0.2, 0.1),  # two answers
        ((LOOK + " well", SAY), -0.2, 0.1),
        (("<think>a <search>b</search></think><search>c</search>", SAY), -0.2, 0.1),
        ((LOOK,), -0.2, 0.0),  # no answer
    ],
)
def test_the_form_of_all_turns_shapes_an_exact_match(texts: tuple[str, ...], right: float, wrong: float) -> None:
    assert format_shaping(played(*texts, success=True)) == right
    assert format_shaping(played(*texts)) == wrong
    assert format_shaping(played(*texts), structure=0.5, final=0.3) in (0.5, 0.3, 0.0)


@pytest.mark.parametrize(("tokens", "penalty"), [(10, 0.0), (40, 0.0), (45, -0.5), (50, -1.0), (60, -2.0)])
def test_texts_near_the_limit_are_penalised(tokens: int, penalty: float) -> None:
    assert overlong(played(SAY, SAY, tokens=tokens), limit=100, buffer=20) == penalty
    assert overlong(turn(SAY, tokens=tokens), limit=50, buffer=10, factor=0.5) == 0.5 * penalty


def test_tokens_of_all_pieces_of_a_turn_count(graph: RolloutGraph) -> None:
    split = graph.split(graph.nodes[graph.episodes[0].leaf], 1)
    split.text = ""
    rated(graph, size=Reward(lambda episode: episode.tokens))
    for episode in graph.complete():
        assert episode.reward_info["size"] == sum(len(graph.nodes[i].action) for i in graph.path(episode.id))


def test_a_judge_is_asked_and_its_last_score_counts() -> None:
    pytest.importorskip("openai")
    answers = iter(["Score: 3\nNo, it is better.\nScore: 7.5", "score = 99", "I cannot say", 400])
    with Endpoint(lambda request: next(answers)) as served:

        async def ask() -> list[float | None]:
            return [await judge(turn("my {answer}"), url=served.url, model="big") for _ in range(4)]

        assert asyncio.run(ask()) == [0.75, 1.0, None, None]
    asked = served.requests[0]["messages"][0]["content"]
    assert "reach the end" in asked and "[user]\ngo" in asked and "from 0 to 10" in asked
    assert served.requests[0]["temperature"] == 0.0


def test_a_judge_can_be_told_the_true_answers() -> None:
    pytest.importorskip("openai")
    with Endpoint(lambda request: "Score: 1") as served:
        prompt = "Is {text} the same as {answers}? From {low} to {high}."
        for task, told in (({"answers": ["a pond", "a lake"]}, "a pond or a lake"), ({"answer": "7"}, "7"), ({}, "")):
            rated_turn = dataclasses.replace(turn("it"), task=task)
            assert asyncio.run(judge(rated_turn, url=served.url, model="x", prompt=prompt, scale=(0, 1))) == 1.0
            asked = served.requests[-1]["messages"][0]["content"]
            assert asked == f"Is it the same as {told}? From 0 to 1."


def test_a_judge_that_is_gone_ends_the_run() -> None:
    pytest.importorskip("openai")
    with pytest.raises(RolloutError, match=r"judge of hier.rewards at http://127.0.0.1:9/v1 does not answer"):
        asyncio.run(judge(turn("a"), url="http://127.0.0.1:9/v1", model="x", timeout_s=1))


# ---- recipes ---------------------------------------------------------------------------------------------------------

TAGS = "{function: 'verl_hier.rewards.formats:has_tags', per: turn, weight: 0.2, options: {tags: [think]}}"


def test_a_recipe_names_its_rewards() -> None:
    recipe = ComposedRecipe.named("himac_alfworld", [f"hier.rewards.format={TAGS}"])
    assert recipe.rewards == {"format": Reward(has_tags, 0.2, "turn", options={"tags": ["think"]})}
    assert ComposedRecipe.named("himac_alfworld").rewards == {}


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ("format={function: 'verl_hier.rewards.formats:has_tag'}", r"has no 'has_tag' \(did you mean 'has_tags'\?\)"),
        ("format={function: has_tags}", "write `package.module:function`"),
        ("format={function: 'nowhere.at:all'}", "hier.rewards.format.function: module 'nowhere.at' cannot be imported"),
        ("format={function: 'verl_hier.rewards.formats:has_tags'}", "missing a required argument: 'tags'"),
        (f"acc={TAGS}", "'acc' is no name for a reward"),
        (f"format={TAGS.replace('turn', 'token')}", "'token' is not one of 'episode', 'turn'"),
        (
            f"format={TAGS.replace('per: turn', 'roles: [executer]')}",
            r"no role 'executer' \(did you mean 'executor'\?\)",
        ),
    ],
)
def test_a_wrong_reward_is_refused_before_anything_starts(given: str, sentence: str) -> None:
    with pytest.raises(RecipeError, match=sentence):
        check_recipe(compose("himac_alfworld", [f"hier.rewards.{given}"]))


def test_flat_episodes_have_rewards_too() -> None:
    """One worker, one role, no tree: the same functions."""
    from verl_hier_plugins.workers.react import React, ReactOptions

    graph, _ = asyncio.run(
        roll_out_scripted(
            environment=Corridor,
            worker=lambda: React(ReactOptions()),
            sampler=Independent(NoOptions()),
            answer=wandering,
            n=2,
        )
    )
    rated(graph, wordy=Reward(words, per="turn"), end=Reward(words))
    assert all(set(e.reward_info) == {"wordy", "end"} for e in graph.complete())
