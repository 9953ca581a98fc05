"""The authors' values: each recipe at size `node` has them or says why not, and a checkout confirms them."""

from __future__ import annotations

import copy
import random
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from omegaconf import OmegaConf
from typer.testing import CliRunner

from verl_hier.cli.main import app
from verl_hier.recipe.authors import (
    ABSENT,
    PRESENT,
    SHARED,
    Authors,
    Place,
    authors,
    confirm,
    deviations,
    holders,
    whole,
)
from verl_hier.recipe.catalogue import find
from verl_hier.recipe.checks.rule import there, value
from verl_hier.recipe.compose import compose
from verl_hier.recipe.pairs import folder
from verl_hier.recipe.papers import groups, settings_of

AUTHORS = authors()
FILE = yaml.safe_load((folder() / "authors" / "values.yaml").read_text("utf-8"))


@cache
def at_node(recipe: str, *overrides: str) -> dict[str, Any]:
    words = next(words for words in find(recipe).combinations() if "size=node" in words)
    plain = OmegaConf.to_container(compose(recipe, [*words, *overrides]), resolve=True)
    assert isinstance(plain, dict)
    return plain


def with_line(config: dict[str, Any], line: str, new: Any) -> dict[str, Any]:
    changed = copy.deepcopy(config)
    *above, last = line.split(".")
    place = changed
    for key in above:
        place = place[key]
    place[last] = new
    return changed


def another(held: Any) -> Any:
    if isinstance(held, bool):
        return not held
    if isinstance(held, int | float):
        return held * 2 + 3
    return [*held, 1] if isinstance(held, list) else f"other_{held}"


@pytest.mark.parametrize("group", AUTHORS)
def test_the_recipe_has_the_authors_values(group: str) -> None:
    assert deviations(AUTHORS[group], at_node(group)) == []


@pytest.mark.parametrize(
    ("group", "form"),
    sorted(
        {(name, each.policies) for name, theirs in AUTHORS.items() for each in theirs.values if each.policies != SHARED}
    ),
)
def test_agents_have_the_models_that_they_have_there(group: str, form: str) -> None:
    config = at_node(group, f"policies={form}")
    assert deviations(AUTHORS[group], config) == []
    for each in AUTHORS[group].values:
        if each.policies == form and each.line is not None:
            changed = with_line(config, each.line, another(each.value))
            assert any(each.line in said for said in deviations(AUTHORS[group], changed))


@pytest.mark.parametrize("group", AUTHORS)
def test_the_executed_cases_of_a_value_are_kept(group: str) -> None:
    cases = Path(__file__).parents[2] / "conformance" / "cases"
    assert [each.case for each in AUTHORS[group].values if each.case and not (cases / each.case).is_file()] == []


@pytest.mark.parametrize("group", groups())
def test_a_loop_is_whole_only_with_confirmed_values(group: str) -> None:
    reason = whole(group, at_node(group))
    assert bool(reason) == (group not in AUTHORS or bool(AUTHORS[group].unconfirmed))


def changes() -> Iterator[tuple[str, str, Any]]:
    """Each line of each group with recorded values: changed, left out, and replaced by our default."""
    for group in AUTHORS:
        ours = at_node(group, "paper=none")
        unconfirmed = {each.line for each in AUTHORS[group].unconfirmed}
        for setting in settings_of(group):
            if setting.line in unconfirmed:
                continue
            default = value(ours, setting.line) if there(ours, setting.line) else None
            for new in (another(setting.value), None, default):
                if new != setting.value:
                    yield group, setting.line, new


def missed(mutations: list[tuple[str, str, Any]]) -> list[tuple[str, str, Any]]:
    """The mutations that no sentence about the line says anything about."""
    return [
        (group, line, new)
        for group, line, new in mutations
        if not any(line in said for said in deviations(AUTHORS[group], with_line(at_node(group), line, new)))
    ]


def test_a_changed_line_of_a_recipe_is_caught() -> None:
    assert missed(random.Random(0).sample(list(changes()), 100)) == []


@pytest.mark.long
def test_every_changed_line_of_a_recipe_is_caught() -> None:
    assert missed(list(changes())) == []


def test_a_topic_without_a_value_is_named() -> None:
    content = copy.deepcopy(FILE)
    del content["groups"]["tree_grpo_search"]["values"]["filters"]
    (said,) = deviations(authors(content)["tree_grpo_search"], at_node("tree_grpo_search"))
    assert said == "tree_grpo_search has no value for the topic 'filters'"


def checkout(theirs: Authors, root: Path) -> Path:
    """A folder whose files hold the recorded values in their lines and nothing else."""
    lines: dict[str, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
    for place in places(theirs):
        lines[place.file][place.number or 1].add("" if place.number is None else written(place))
    for file, numbered in lines.items():
        path = root / file
        path.parent.mkdir(parents=True, exist_ok=True)
        text = [" ".join(sorted(numbered.get(number, ()))) for number in range(1, max(numbered) + 1)]
        path.write_text("\n".join(text) + "\n", "utf-8")
    return root


def places(theirs: Authors) -> list[Place]:
    return [place for each in theirs.values for place in each.places]


def written(place: Place) -> str:
    if place.reads == PRESENT:
        return f" {place.key} "
    return f" {place.key}={yaml.safe_dump(place.reads, default_flow_style=True).removesuffix('...' + chr(10)).strip()}"


def changed_values(group: str) -> Iterator[tuple[str, Authors]]:
    """Each recorded value of a group, with the group in which it alone is another one."""
    for name, held in FILE["groups"][group]["values"].items():
        for number in range(len(held.get("reads", ())) if isinstance(held.get("at"), list) else "reads" in held):
            content = {"words": FILE["words"], "groups": {group: copy.deepcopy(FILE["groups"][group])}}
            entry = content["groups"][group]["values"][name]
            if isinstance(held["at"], list):
                entry["reads"][number] = another(entry["reads"][number])
            elif held["reads"] == ABSENT:
                inside = [place for place in places(AUTHORS[group]) if place.number]
                entry["key"] = next((place.key for place in inside if entry["at"] in names(group, place)), "")
            elif held["reads"] == PRESENT:
                entry["key"] += " of another kind"
            else:
                entry["reads"] = another(entry["reads"])
            yield name, authors(content)[group]


def unnoticed(group: str, source: Path) -> list[str]:
    """The values that may be others than the source has without a word about them."""
    return [
        name
        for name, changed in changed_values(group)
        if not any(f" {name}: " in said for said in confirm(changed, source))
    ]


@pytest.mark.parametrize("group", AUTHORS)
def test_any_one_value_that_the_source_does_not_have_is_caught(group: str, tmp_path: Path) -> None:
    source = checkout(AUTHORS[group], tmp_path)
    assert confirm(AUTHORS[group], source) == []
    assert unnoticed(group, source) == []


def test_files_of_another_commit_in_a_fork_are_not_those_of_the_recorded_repository(tmp_path: Path) -> None:
    """LATR's repository, as many others, has verl's files at a commit at which nobody has read them."""
    source = checkout(AUTHORS["latr_math"], tmp_path)
    others = {place.file for place in places(AUTHORS["gdro_python_tool"]) if place.repository == "volcengine/verl"}
    own = {place.file for place in places(AUTHORS["latr_math"])}
    for file in others - own:
        path = source / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("of another commit\n" * 500, "utf-8")
    assert [theirs.group for theirs in holders(source)] == ["latr_math"]
    base = checkout(AUTHORS["gdro_python_tool"], tmp_path / "base")
    (base / FILE["groups"]["gdro_python_tool"]["files"]["script"]).unlink()
    assert "gdro_python_tool" in [theirs.group for theirs in holders(base)]


def names(group: str, place: Place) -> list[str]:
    files = FILE["groups"][group]["files"].items()
    return [name for name, file in files if place.file == (file["file"] if isinstance(file, dict) else file)]


def test_the_command_says_what_a_checkout_does_not_have(tmp_path: Path) -> None:
    source = checkout(AUTHORS["mars_games"], tmp_path)
    run = CliRunner().invoke(app, ["conformance", "--source", str(source)])
    assert run.exit_code == 0 and "0 places differ" in run.output
    other = tmp_path / "other"
    checkout(AUTHORS["mars_games"], other)
    config = other / FILE["groups"]["mars_games"]["files"]["config"]
    config.write_text(config.read_text("utf-8").replace("top_k=100", "top_k=50"), "utf-8")
    run = CliRunner().invoke(app, ["conformance", "--source", str(other)])
    assert run.exit_code == 1 and "actor_rollout_ref.rollout.top_k" in run.output and "1 places differ" in run.output
