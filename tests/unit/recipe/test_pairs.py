"""Recipes as pairs of a method and an environment: the table, the names, and what is said of the pairs."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from tests.fixtures.tiers import spread
from verl_hier.cli.main import app
from verl_hier.errors import RecipeError
from verl_hier.recipe import pairs
from verl_hier.recipe.catalogue import find, recipes
from verl_hier.recipe.check import refusal
from verl_hier.recipe.compose import compose

ROOT = Path(__file__).parents[3]
GROUPS = pairs.folder() / "hier"
# Methods that make a recipe with a file of its own, and worlds that leave their data to the user.
WITHOUT_ROW = {"method": {"flat"}, "environment": {"verl_tools"}}


def test_each_method_and_environment_has_a_file_and_a_row() -> None:
    for kind, rows in (("method", pairs.table()["methods"]), ("environment", pairs.table()["environments"])):
        assert {path.stem for path in (GROUPS / kind).glob("*.yaml")} - WITHOUT_ROW[kind] == set(rows)


def test_the_table_names_files_that_there_are_and_all_of_them() -> None:
    named = {pairs.PROMPTS, *(file for row in pairs.table()["prompts"].values() for file in row.values())}
    assert named == {path.stem for path in (GROUPS / "prompt").glob("*.yaml")}
    families = {row["prompts"] for row in pairs.table()["methods"].values()}
    assert families == set(pairs.table()["prompts"])
    assert set(pairs.table()["settings"]) <= set(pairs.tried())


def test_what_holds_at_a_scale_is_a_block_and_no_folder() -> None:
    """A file below `tiny/` would be hidden by the block of that name, or hide it."""
    assert not [path for path in GROUPS.glob("*/*") if path.is_dir()]
    assert not {path.stem for path in pairs.folder().glob("*.yaml")} & {*pairs.by_name()}


def test_no_two_pairs_have_one_name() -> None:
    assert len(pairs.by_name()) == len(pairs.table()["methods"]) * len(pairs.table()["environments"])
    for name, (method, environment) in pairs.by_name().items():
        assert find(name).name == name and name == f"{method}_{environment}"
        assert find(name).groups["method"] == method and find(name).groups["environment"] == environment


@pytest.mark.parametrize("name", spread(16, sorted(pairs.tried())))
def test_a_pair_is_what_its_text_says_in_a_file_of_ones_own(name: str, tmp_path: Path) -> None:
    copied = tmp_path / "copied.yaml"
    copied.write_text(find(name).text, encoding="utf-8")
    size = find(name).sizes[0]
    assert compose(str(copied), [f"size={size}"]) == compose(name, [f"size={size}"])


def test_every_pair_that_was_tried_composes() -> None:
    assert not set(pairs.tried()) & set(pairs.refused())


def test_at_least_half_of_all_pairs_compose() -> None:
    assert 2 * len(pairs.refused()) <= len(pairs.by_name())
    assert set(pairs.refused()) <= set(pairs.by_name())


@pytest.mark.parametrize("number", range(8))
def test_what_is_recorded_of_a_pair_is_what_check_says(number: int) -> None:
    chosen = random.Random(f"pairs-{number}")
    names = [chosen.choice(sorted(pairs.refused())), chosen.choice(sorted({*pairs.by_name()} - {*pairs.refused()}))]
    for name in names:
        assert refusal(name) == pairs.refused().get(name, ""), name


@pytest.mark.long
def test_what_is_recorded_of_every_pair_is_what_check_says() -> None:
    command = [sys.executable, "scripts/pairs.py", "--sample", str(len(pairs.by_name()))]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_two_words_name_a_recipe() -> None:
    one, two = (
        CliRunner().invoke(app, ["check", *words]) for words in (["tree_grpo_minigrid"], ["tree_grpo", "minigrid"])
    )
    assert one.exit_code == 0 and "tree_grpo_minigrid can run" in one.stdout
    assert two.stdout == one.stdout
    with_override = CliRunner().invoke(app, ["check", "tree_grpo", "minigrid", "hier.seed=3"])
    assert with_override.exit_code == 0 and "coldstart tree_grpo_minigrid hier.seed=3" in with_override.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["tree_grpo"], "tree_grpo is a method, and a recipe is a method on an environment: `tree_grpo ENVIRONMENT`"),
        (["tree_grpo", "minigird"], "(did you mean 'minigrid'?)"),
        (["tree_grpo", "hier.seed=3"], "`tree_grpo ENVIRONMENT`, where ENVIRONMENT is one of alfworld, "),
    ],
)
def test_a_method_alone_is_no_recipe(words: list[str], said: str) -> None:
    with pytest.raises(RecipeError) as refusal:
        pairs.joined(words[0], words[1:])
    assert said in str(refusal.value)


def test_other_words_stay_as_they_are() -> None:
    assert pairs.joined("himac_alfworld", ["size=node"]) == ("himac_alfworld", ["size=node"])
    assert pairs.joined("./mine.yaml", ["search"]) == ("./mine.yaml", ["search"])
    assert pairs.joined(None, []) == (None, [])


def test_pairs_are_listed() -> None:
    listed = CliRunner().invoke(app, ["recipes", "--pairs", "minigrid"]).stdout
    assert "grpo_minigrid: tried\n" in listed and "tree_grpo_minigrid: composes\n" in listed
    name, why = next((name, why) for name, why in pairs.refused().items() if name.endswith("_minigrid"))
    assert f"{name}: {why[:30]}" in listed
    whole = CliRunner().invoke(app, ["recipes", "--pairs"]).stdout
    assert f"{len(pairs.by_name()) - len(pairs.refused())} of {len(pairs.by_name())} pairs compose" in whole


def test_hydra_lists_recipes_and_blocks() -> None:
    from hydra.core.object_type import ObjectType

    from verl_hier.recipe.search_path import SCHEME, ShippedSource

    source = ShippedSource("test", f"{SCHEME}://recipes")
    assert set(source.list("", ObjectType.CONFIG)) == {recipe.name for recipe in recipes()}
    assert not source.is_config(pairs.TABLE) and source.is_config("tree_grpo_minigrid")
    for file in (GROUPS / "prompt").glob("*.yaml"):
        content = yaml.safe_load(file.read_text(encoding="utf-8")) or {}
        for scale in pairs.SCALES:
            assert source.is_config(f"hier/prompt/{scale}/{file.stem}") == (scale in content)
            assert (file.stem in source.list(f"hier/prompt/{scale}", ObjectType.CONFIG)) == (scale in content)
    assert source.is_group("hier/prompt/tiny") and not source.is_group("hier/prompt/nowhere")


@pytest.mark.parametrize("estimator", ["hierarchical_grpo", "m_grpo", "matpo", "wideseek_r1"])
def test_estimators_of_teams_take_the_agents_of_a_program(estimator: str) -> None:
    agents = "hier.worker={name: gateway, agents: {solver: {level: 0}, searcher: {level: 1, depth: 1}}}"
    assert refusal("grpo_gateway", [f"hier.estimator={{name: {estimator}}}", agents]) == ""
