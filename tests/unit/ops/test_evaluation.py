"""Evaluation without training: the figures and their intervals, and policies of every kind on real recipes."""

from __future__ import annotations

import asyncio
import json
import math
import random
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.fixtures.chat_endpoint import Endpoint
from tests.fixtures.written_runs import write_run
from verl_hier.cli.main import app
from verl_hier.coldstart import build_tiny
from verl_hier.coldstart.build import texts_of
from verl_hier.compat.checkpoints import TRACKER, WHOLE
from verl_hier.compat.run_state import write_state
from verl_hier.errors import HierError, RecipeError, RolloutError
from verl_hier.graph import EpisodeRecord, Node, RolloutGraph, read_graphs
from verl_hier.ops.evaluation import evaluate, measure, model_tokens
from verl_hier.ops.intervals import average, share
from verl_hier.ops.rollouts import Plan, finish, play, recipe_of, roll_out, schedule_of
from verl_hier.ops.runs import Run
from verl_hier.recipe.composed import ComposedRecipe
from verl_hier.rollout import Request

SMALL = (
    *("hier.environment.pool=4", "hier.environment.validation=4", "hier.environment.goals=1"),
    "hier.rollout.environment_processes=1",
)


@pytest.fixture(scope="module")
def households() -> ComposedRecipe:
    return ComposedRecipe.named("himac_alfworld", SMALL)


# ---- intervals -------------------------------------------------------------------------------------------------------


def test_one_episode_a_task_has_wilsons_interval() -> None:
    """The textbook case of 8 out of 10: 49.0 % to 94.3 %."""
    estimate = share([[1.0]] * 8 + [[0.0]] * 2)
    assert estimate.mean == 0.8
    assert (round(estimate.low, 3), round(estimate.high, 3)) == (0.490, 0.943)
    nothing = share([[0.0]] * 10)
    assert nothing.low == 0.0 and round(nothing.high, 3) == 0.278


def test_episodes_that_repeat_their_task_count_once() -> None:
    once = share([[1.0]] * 8 + [[0.0]] * 2)
    copied = share([[1.0] * 5] * 8 + [[0.0] * 5] * 2)
    assert once.low - 0.02 < copied.low < once.low and once.high < copied.high < once.high + 0.02
    assert share([[1.0] * 4] * 3).low == pytest.approx(share([[1.0]] * 3).low)
    mixed = share([[1.0, 0.0]] * 10)
    assert mixed.low == pytest.approx(share([[1.0]] * 10 + [[0.0]] * 10).low), "never narrower than independent ones"
    assert share([[1.0, 0.0, 1.0]]).high < 1.0, "a single task has an interval about itself"


@pytest.mark.parametrize("resemblance", [0.0, 0.6])
def test_the_interval_covers_the_true_share(resemblance: float) -> None:
    """Drawn from a known share; tasks resemble themselves by a Beta distribution of their own shares."""
    rng, covered, truth = random.Random(1), 0, 0.3
    for _ in range(400):
        groups = []
        for _ in range(40):
            if resemblance:
                scale = (1 - resemblance) / resemblance
                chance = rng.betavariate(truth * scale, (1 - truth) * scale)
            else:
                chance = truth
            groups.append([float(rng.random() < chance) for _ in range(4)])
        estimate = share(groups)
        covered += estimate.low <= truth <= estimate.high
    assert 0.92 <= covered / 400 <= 0.98


def test_a_mean_has_an_interval_over_tasks() -> None:
    estimate = average([[1.0, 3.0], [2.0, 2.0], [3.0, 1.0]])
    assert estimate.mean == estimate.low == estimate.high == 2.0
    estimate = average([[0.0], [1.0], [2.0], [3.0]])
    assert estimate.mean == 1.5
    deviation = math.sqrt(5 / 3 / 4)  # standard error with the sample's variance
    assert estimate.high - estimate.mean == pytest.approx(1.96 * deviation, rel=1e-4)
    assert math.isnan(average([[1.0, 2.0]]).low)


def test_figures_are_read_from_graphs_by_role() -> None:
    def turn(number: int, role: str, tokens: int, **fields: object) -> Node:
        place = {"id": number, "parent": number - 1, "context": -1, "episode": 0, "agent": role, "role": role}
        return Node(**place, level=0, turn=number, segment=0, plan=-1, observation=[1], action=[1] * tokens,
                    logprobs=[], **fields)  # fmt: skip

    nodes = [turn(0, "planner", 4), turn(1, "executor", 2, reward=1.0), turn(2, "executor", 6, valid=False)]
    record = EpisodeRecord(0, leaf=2, status="finished", ret=1.0, success=True, reward_info={"polite": 0.5})
    lost = EpisodeRecord(1, status="failed", error="killed: …")
    figures = measure([RolloutGraph({"uid": "a"}, nodes, [record, lost])], model_tokens)
    assert (figures["episodes"], figures["failed"], figures["turns"], figures["tokens"]) == (1, 1, 3.0, 12.0)
    assert figures["rewards"]["polite"].mean == 0.5
    planner, executor = figures["roles"]
    assert (planner.role, planner.turns, planner.tokens_per_turn, planner.invalid) == ("planner", 1.0, 4.0, 0.0)
    assert (executor.turns, executor.tokens, executor.invalid, executor.reward) == (2.0, 8.0, 0.5, 1.0)


# ---- policies --------------------------------------------------------------------------------------------------------


def test_the_expert_solves_its_households(households: ComposedRecipe) -> None:
    result, graphs = asyncio.run(evaluate("expert", households))
    assert result.success is not None and result.success.mean == 1.0 and result.success.low < 0.6
    assert [graph.task["index"] for graph in graphs] == [0, 1, 2, 3]
    assert {role.role for role in result.roles} == {"planner", "executor"}
    assert math.isnan(result.tokens) and result.to_dict()["tokens"] is None


def test_the_expert_plays_workers_into_which_its_episodes_can_be_rewritten() -> None:
    chain = ComposedRecipe.named("chain_of_agents_alfworld", SMALL)
    result, graphs = asyncio.run(evaluate("expert", chain, Plan(tasks=2)))
    assert result.success is not None and result.success.mean == 1.0
    assert "<action>" in "".join(node.text for node in graphs[0].nodes)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, households: ComposedRecipe) -> Path:
    return build_tiny(tmp_path_factory.mktemp("tiny"), texts_of(households, walks=6), seed=0)


def test_a_model_in_this_process_plays_as_the_recipe_validates(model: Path, households: ComposedRecipe) -> None:
    plan = Plan(tasks=2, n=2, temperature=1.0, seed=3)
    result, graphs = asyncio.run(evaluate(model, households, plan))
    assert (result.tasks, result.episodes, result.temperature, result.seed) == (2, 4, 1.0, 3)
    assert result.tokens > 0 and all(len(graph.request) and graph.request["validate"] for graph in graphs)
    assert all(node.logprobs and len(node.logprobs) == len(node.action) for graph in graphs for node in graph.nodes)
    again, _ = asyncio.run(roll_out(model, households, plan))
    assert [[n.action for n in g.nodes] for g in again] == [[n.action for n in g.nodes] for g in graphs]
    greedy, _ = asyncio.run(roll_out(model, households, Plan(tasks=[1], n=2)))
    assert greedy[0].task["index"] == 1
    first, second = (greedy[0].path(episode.id) for episode in greedy[0].complete())
    assert [greedy[0].nodes[i].action for i in first] == [greedy[0].nodes[i].action for i in second]


@pytest.mark.slow
def test_a_run_plays_its_own_recipe_with_its_saved_policy(
    model: Path, households: ComposedRecipe, tmp_path: Path
) -> None:
    from omegaconf import OmegaConf

    (tmp_path / "recipe.yaml").write_text(OmegaConf.to_yaml(households.config, resolve=True))
    (tmp_path / "model").symlink_to(model)
    newest = tmp_path / "checkpoints" / "global_step_7"
    newest.mkdir(parents=True)
    (newest.parent / "latest_checkpointed_iteration.txt").write_text("7")
    own = recipe_of(tmp_path, None, ("hier.environment.validation=2",))
    result, graphs = asyncio.run(evaluate(Run.open(tmp_path), own))
    assert (result.recipe, result.tasks, result.episodes) == ("himac_alfworld", 2, 2)
    assert result.policy == str(tmp_path)
    assert {graph.step for graph in graphs} == {7}, "the random numbers of its last validation"
    with pytest.raises(RecipeError, match="size=node: the recipe of a run is composed already"):
        recipe_of(tmp_path, None, ("size=node",))
    other, _ = asyncio.run(evaluate(str(tmp_path), ComposedRecipe.named("grpo_alfworld", SMALL), Plan(tasks=1)))
    assert other.worker == "react"


@pytest.mark.slow
def test_trees_of_a_saved_model_are_those_of_training(model: Path, households: ComposedRecipe) -> None:
    graphs, _ = asyncio.run(roll_out(model, households, Plan(tasks=1, trees=True)))
    assert any(episode.source >= 0 for episode in graphs[0].episodes), "the nested sampler forks plans"
    assert not graphs[0].request["validate"]


def test_a_notebook_with_a_running_loop_may_call(model: Path, households: ComposedRecipe) -> None:
    async def cell() -> int:
        graphs, _ = finish(roll_out("expert", households, Plan(tasks=1)))
        return len(graphs)

    assert asyncio.run(cell()) == 1

    async def wrong() -> None:
        finish(roll_out("expert", households, Plan(split="nothing")))

    with pytest.raises(RecipeError, match="no split 'nothing'"):
        asyncio.run(wrong())


@pytest.mark.slow
def test_a_served_model_plays_with_messages(households: ComposedRecipe) -> None:
    pytest.importorskip("openai")
    with Endpoint(lambda request: "look") as served:
        result, graphs = asyncio.run(evaluate(served.url, households, Plan(tasks=2), "big"))
    assert result.policy == f"big at {served.url}" and result.success is not None and result.success.mean == 0.0
    assert {request["model"] for request in served.requests} == {"big"}
    assert served.requests[0]["temperature"] == 0.0 and "plan: put" in json.dumps(served.requests[0]["messages"])
    assert graphs[0].nodes[0].text == "look"
    with Endpoint(lambda request: 400) as served, pytest.raises(RolloutError, match="1 requests were refused"):
        asyncio.run(evaluate(served.url, households, Plan(tasks=1), "big"))


# ---- what is refused, and the command --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "recipe", "plan", "words"),
    [
        ("expert", "himac_alfworld", Plan(tasks=[9]), "there is no task 9: the split 'val' has 4 tasks"),
        ("/nowhere/at/all", "himac_alfworld", Plan(), "there is no run and no model at /nowhere/at/all"),
    ],
)
def test_what_cannot_be_played_is_one_sentence(source: str, recipe: str, plan: Plan, words: str) -> None:
    with pytest.raises(HierError, match=words):
        asyncio.run(roll_out(source, ComposedRecipe.named(recipe, SMALL[:2]), plan))


def test_a_folder_without_a_model_and_a_model_without_a_recipe(tmp_path: Path, households: ComposedRecipe) -> None:
    with pytest.raises(HierError, match="neither a run"):
        asyncio.run(roll_out(tmp_path, households, Plan(tasks=1)))
    with pytest.raises(RecipeError, match="there is no folder some/model; name that of a run, or"):
        recipe_of("some/model", None)
    with pytest.raises(RecipeError, match="name the recipe"):
        recipe_of(tmp_path, None)


def test_verls_own_data_set_is_scored_by_verls_reward_function(toy: Path) -> None:
    flat = ComposedRecipe.named(
        "flat",
        (
            f"data.val_files={toy}/train.parquet",
            f"actor_rollout_ref.model.path={toy}",
            f"reward.custom_reward_function.path={toy}/reward.py",
            *("hier.rollout.template=plain", "data.max_response_length=8", "data.max_prompt_length=64"),
        ),
    )
    result, graphs = asyncio.run(evaluate(toy, flat, Plan(tasks=3)))
    assert (result.tasks, result.episodes, result.success) == (3, 3, None)
    assert result.ret.mean == pytest.approx(result.rewards["score"].mean) and result.ret.mean > 0
    said, letter = graphs[1].nodes[0].text, "b"
    expected = sum(ord(c) % 7 for c in said + letter) / (7 + 7 * len(said))
    assert graphs[1].episodes[0].ret == pytest.approx(expected), "the reward function of the fixture"
    with pytest.raises(RecipeError, match=r"there is no file nowhere.parquet"):
        asyncio.run(roll_out(toy, flat, Plan(split="nowhere.parquet")))


def test_the_command_prints_stores_and_speaks_json(tmp_path: Path) -> None:
    file = tmp_path / "graphs.jsonl"
    asked = ["eval", "expert", "himac_alfworld", *SMALL, "--tasks", "2", "--graphs", str(file)]
    out = CliRunner().invoke(app, asked).stdout
    assert "success     100.0 % (2 of 2)  (95 % interval 34.2 % to 100.0 %)" in out and "executor" in out
    assert len(list(read_graphs(file))) == 2
    shown = json.loads(CliRunner().invoke(app, [*asked, "--json"]).stdout)
    assert shown["success"]["mean"] == 1.0 and shown["roles"][0]["role"] == "planner"


def test_an_evaluation_is_told_what_the_schedule_of_the_run_knows(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [], "evolver_search", ["hier.environment.validation=4"])
    recipe = ComposedRecipe.of(run.recipe())
    skills = [{"text": "look left", "step": 3, "task": 1, "proofs": 2}, {"text": "wait", "step": 3}]
    checkpoint = run.folder / "checkpoints" / "global_step_3"
    checkpoint.mkdir(parents=True)
    write_state(checkpoint, "scored_skills", {"skills": skills}, [])
    (checkpoint / WHOLE).touch()
    (checkpoint.parent / TRACKER).write_text("3")
    asked: list[Request] = []

    class Notes:
        """A player that plays nothing."""

        async def play(self, request: Request, sampler: object) -> RolloutGraph:
            asked.append(request)
            return RolloutGraph(task={}, step=0, seed=0)

    def told(source: Path | str, **plan: Any) -> list[Any]:
        asked.clear()
        schedule = schedule_of(source, recipe)
        asyncio.run(play(recipe, Notes(), Plan(tasks=2, **plan), schedule=schedule))  # type: ignore[arg-type]
        return [dict(request.told) for request in asked]

    assert told(run.folder) == [{"skills": ["look left"]}] * 2
    assert told("expert") == [{"skills": []}] * 2, "without a run the library is what the recipe begins with"
    assert told(run.folder, trees=True, split="train") == [{}, {}]
    other = ComposedRecipe.named("grpo_search")
    assert schedule_of(run.folder, other).told_in_evaluation([0]) is None, "another schedule has another state"
