"""`verl-hier env`: a task in the terminal by hand, by the expert and by a model, through any worker."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner, Result

from tests.fixtures.chat_endpoint import Endpoint
from verl_hier.cli.main import app
from verl_hier.errors import HierError
from verl_hier.ops.live_episode import recipe_for

SMALL = ["hier.environment.pool=2", "hier.environment.validation=2", "hier.environment.goals=1"]


def env(*arguments: str, typed: str | None = None) -> Result:
    return CliRunner().invoke(app, ["env", *arguments], input=typed)


def test_the_expert_is_told_turn_by_turn_with_its_prompts() -> None:
    out = env("alfworld", *SMALL, "--worker", "planner_executor", "--expert").stdout
    assert "alfworld, worker planner_executor, played by expert" in out
    first, second = out.split("turn 2:")[0], out.split("turn 2:")[1]
    assert "turn 1: planner (level 0)\n  reads [user] plan: " in first and "  says: find " in first
    assert second.startswith(" executor (level 1, in a new context)\n  reads [user] goal: find ")
    assert out.rstrip().endswith("solved, return 1, finished") and "\n  reward 1\n" in out


def test_a_person_types_turns_and_asks_for_actions() -> None:
    out = env("alfworld", *SMALL, typed="?\ngo to \\\nnowhere\nlook\n").stdout
    assert "  you:   possible: " in out and "go to" in out
    assert "  says:" not in out, "a person knows what they have typed"
    assert out.count("refused") == 1 and "reads [user] nothing happens" in out
    assert out.rstrip().endswith("not solved, return -0.02, truncated (empty_action)")


def test_a_served_model_plays_by_a_recipe() -> None:
    pytest.importorskip("openai")
    with Endpoint(lambda request: "look") as served:
        limit = "hier.rollout.max_turns=2"
        asked = ["--recipe", "grpo_alfworld", "--policy", served.url, "--served-model", "big"]
        out = env(*SMALL, limit, *asked).stdout
    assert f"played by big at {served.url}" in out and out.count("says: look") == 2
    assert "not solved" in out and "truncated (max_turns)" in out


def test_every_environment_has_a_recipe_to_be_played() -> None:
    assert recipe_for("textworld").hier.recipe.name == "grpo_textworld"
    assert recipe_for("alfworld", "delegation").parts.worker.spec.name == "delegation"
    other = recipe_for("textworld", "switch_keep")
    assert (other.parts.environment.spec.name, other.parts.worker.spec.name) == ("textworld", "switch_keep")
    bare = recipe_for("textarena", overrides=["hier.environment.game=FrozenLake-v0"])
    assert (bare.parts.environment.spec.name, bare.parts.worker.spec.name) == ("textarena", "react")
    with pytest.raises(HierError, match="textword"):
        recipe_for("textword")
    with pytest.raises(HierError, match="reactt"):
        recipe_for("alfworld", "reactt")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [([], "name an environment"), (["alfworld", "--expert", "--policy", "x"], "choose one of --expert and --policy")],
)
def test_a_wrong_call_is_one_sentence(arguments: list[str], sentence: str) -> None:
    with pytest.raises(HierError, match=sentence):
        raise env(*arguments).exception or AssertionError
