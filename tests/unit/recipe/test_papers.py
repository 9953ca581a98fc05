"""The groups of `hier/paper`: a recipe that is named after a paper has the authors' settings, or says why not."""

from __future__ import annotations

import ast
import json
import re
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from omegaconf import OmegaConf

from tests.fixtures.tiers import spread
from verl_hier.cli.main import COMMANDS
from verl_hier.errors import RecipeError
from verl_hier.host.manager import PluginHost
from verl_hier.host.specs import REGISTERED
from verl_hier.recipe.catalogue import find
from verl_hier.recipe.check import check_recipe
from verl_hier.recipe.checks.rule import there, value
from verl_hier.recipe.compose import compose
from verl_hier.recipe.papers import contradictions, groups, settings_of
from verl_hier.recipe.schema import HierConfig

ROOT = Path(__file__).parents[3]
METHODS = ROOT / "docs" / "methods"
GROUPS = groups()
TOPICS = {
    "tasks of a step": "data.train_batch_size",
    "episodes of a task": r"actor_rollout_ref.rollout.n",
    "mini-batch": r"hier.update.mini_batch.\w+",
    "epochs of a batch": "hier.update.epochs",
    "learning rate": "actor_rollout_ref.actor.optim.lr",
    "warm-up": r"actor_rollout_ref.actor.optim.lr_warmup_\w+",
    "KL term": "actor_rollout_ref.actor.use_kl_loss",
    "temperature": "actor_rollout_ref.rollout.temperature",
    "top-p": "actor_rollout_ref.rollout.top_p",
    "length of a prompt": "data.max_prompt_length",
    "length of an answer": r"data.max_response_length|hier.rollout.max_tokens_per_turn",
    "loss weighting": r"hier.guards.weight_by",
}


@cache
def at_node(recipe: str, *overrides: str) -> dict[str, Any]:
    words = next(words for words in find(recipe).combinations() if "size=node" in words)
    plain = OmegaConf.to_container(compose(recipe, [*words, *overrides]), resolve=True)
    assert isinstance(plain, dict)
    return plain


@pytest.mark.parametrize("group", spread(len(GROUPS) // 2, GROUPS))
def test_the_recipe_of_that_name_has_the_authors_settings(group: str) -> None:
    config = at_node(group)
    assert value(config, "hier.paper.name") == group
    assert contradictions(config) == []
    check_recipe(config)


@pytest.mark.parametrize("group", GROUPS)
def test_each_setting_has_its_place_in_the_source(group: str) -> None:
    settings = settings_of(group)
    assert HierConfig.of(at_node(group)).paper.source
    assert [setting.line for setting in settings if not setting.where] == []
    named = {setting.line for setting in settings} | set(HierConfig.of(at_node(group)).paper.differs)
    lacking = [topic for topic, line in TOPICS.items() if not any(re.fullmatch(line, name) for name in named)]
    assert not lacking, f"{group} says nothing about: {', '.join(lacking)}"


@pytest.mark.parametrize("group", GROUPS)
def test_what_differs_is_explained_and_still_differs(group: str) -> None:
    config = at_node(group)
    for what, difference in HierConfig.of(config).paper.differs.items():
        assert difference.why, what
        assert not re.fullmatch(r"(hier|data|trainer|actor_rollout_ref)\..*", what) or there(config, what), what
        ours = value(config, what) if there(config, what) else difference.ours
        assert ours is not None and ours != difference.theirs, what


@pytest.mark.parametrize("group", GROUPS)
def test_the_page_of_the_method_compares_theirs_and_ours(group: str) -> None:
    pages = [page for page in METHODS.glob("*.md") if f"<!-- generated: paper {group} -->" in page.read_text("utf-8")]
    assert len(pages) == 1, f"put `<!-- generated: paper {group} -->` on the page of its method"


def test_a_group_is_called_like_the_recipe_that_takes_it_over() -> None:
    for group in GROUPS:
        assert "node" in find(group).sizes
    assert value(at_node("himac_alfworld"), "hier.paper.name") in (None, "himac_alfworld")


def test_an_override_that_contradicts_the_paper_is_named() -> None:
    report = check_recipe(compose("gigpo_alfworld", ["size=node", "data.train_batch_size=32"]))
    (note,) = [note for note in report.notes if "hier/paper=gigpo_alfworld" in note]
    assert note.startswith("data.train_batch_size is 32") and "16 (train_data_size=16)" in note


def test_the_recipe_can_do_without_the_paper() -> None:
    config = at_node("gigpo_alfworld", "paper=none")
    assert value(config, "hier.paper") is None and contradictions(config) == []


def test_the_cpu_size_has_small_numbers_and_can_take_the_authors() -> None:
    small = compose("gigpo_alfworld", ["size=cpu"])
    assert value(small, "hier.paper") is None
    theirs = compose("gigpo_alfworld", ["size=cpu", "paper=gigpo_alfworld"])
    assert contradictions(OmegaConf.to_container(theirs, resolve=True)) == []


def test_an_unknown_group_is_refused() -> None:
    with pytest.raises(RecipeError, match="no authors' settings 'gigpo'"):
        compose("gigpo_alfworld", ["size=node", "paper=gigpo"])


# ---- what is claimed ------------------------------------------------------------------------------------------------

CLAIMS = yaml.safe_load((ROOT / "docs" / "claims.yaml").read_text("utf-8"))
AUDIT = yaml.safe_load((ROOT / "docs" / "audit.yaml").read_text("utf-8"))


def backed(reference: str) -> bool:
    """Whether a file exists, or a test in it for `FILE::TEST`."""
    file, _, test = reference.partition("::")
    path = ROOT / file
    if not test or not path.is_file():
        return path.exists() and not test
    tree = ast.parse(path.read_text("utf-8"))
    return any(
        isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == test for node in ast.walk(tree)
    )


@pytest.mark.parametrize("method", CLAIMS)
def test_each_claim_is_backed(method: str) -> None:
    claim = CLAIMS[method]
    assert (METHODS / claim["page"]).is_file()
    assert set(claim["settings"]) <= set(GROUPS)
    for column in ("formula", "loop", "proof"):
        says, tests = claim[column]["says"], claim[column].get("tests", [])
        assert tests or re.match(r"none|no |not |without ", says), f"{method}: nothing backs {column}: {says}"
        assert [test for test in tests if not backed(test)] == []


def test_a_method_that_was_measured_has_cells_of_three_seeds() -> None:
    seeds: dict[str, set[int]] = defaultdict(set)
    for file in (ROOT / "docs").glob("*/cells.jsonl"):
        for cell in map(json.loads, file.read_text("utf-8").splitlines()):
            seeds[cell["method"].replace("_", "")].add(cell["seed"])
    for method, claim in CLAIMS.items():
        settings = (setting.rpartition("_")[0] for setting in claim["settings"])
        names = [name.replace("_", "") for name in (claim["page"].removesuffix(".md"), *settings)]
        measured = max(len(seeds[name]) for name in names) >= 3
        assert measured or claim["proof"]["says"] == "not measured yet", method


def test_every_group_is_claimed_by_a_method() -> None:
    assert {group for claim in CLAIMS.values() for group in claim["settings"]} == set(GROUPS)


@pytest.mark.parametrize("kind", AUDIT)
def test_each_line_of_the_audit_is_closed_by_a_test_or_explained(kind: str) -> None:
    for name, entry in AUDIT[kind].items():
        assert entry["was"] and entry["now"], name
        assert entry.get("tests") or entry["now"].startswith("kept: "), f"{name} has neither a test nor a reason"
        assert [test for test in entry.get("tests", ()) if not backed(test)] == []


OTHERS = yaml.safe_load((ROOT / "docs" / "other_papers.yaml").read_text("utf-8"))


@pytest.mark.parametrize("paper", OTHERS)
def test_what_carries_another_paper_is_there(paper: str) -> None:
    entry = OTHERS[paper]
    assert paper not in CLAIMS, "a paper that a method is named after stands in the other table"
    assert entry["here"] in ("yes", "partly", "no") and (entry["by"] or entry["here"] == "no")
    host = PluginHost.load({"builtin": True})
    known = {name for kind in REGISTERED for name in host.specs(kind)}
    known |= {name for _, commands in COMMANDS for name in commands}
    known |= {file.stem for file in (ROOT / "recipes" / "hier" / "method").glob("*.yaml")}
    assert [name for name in entry["by"] if name not in known and not (ROOT / "docs" / name).is_file()] == []
