"""What is checked is what runs: the config that verl's main composes in a run is the one that `check` looked at."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from verl_hier.errors import RecipeError
from verl_hier.ops import training
from verl_hier.ops.training import plan_run, start
from verl_hier.recipe.catalogue import find, recipes
from verl_hier.recipe.compose import compose, verl_config_folder
from verl_hier.recipe.handover import NAME, hand_over
from verl_hier.recipe.overrides import hydra_value

STEPS = 7
"""Steps of an edited copy; no shipped recipe has as many."""
SHIPPED = [recipe.name for recipe in recipes()]
TAKEN = sorted({*SHIPPED, *(path.stem for path in verl_config_folder().glob("*.yaml"))})
ODD = ["two words", "рецепт", "配方", "🌲", "a=b@c%d#e", "it's", "x,y", "{z}", "[w]", "-v", "verl.yaml"]

COMPOSES = """
import io, json, sys
from contextlib import redirect_stdout
from hydra.core.global_hydra import GlobalHydra
from verl.trainer.main_ppo import main

for arguments in json.load(sys.stdin):
    GlobalHydra.instance().clear()
    sys.argv = ["main_ppo.py", *arguments, "--cfg", "job"]
    said = io.StringIO()
    with redirect_stdout(said):
        main()
    print(json.dumps(said.getvalue()), flush=True)
"""
"""verl's own main, asked for the configs of a list of commands."""


def edited(name: str, place: Path) -> Path:
    """A shipped recipe copied under a name and edited: the one that has the name, else another one."""
    content = yaml.safe_load(find(name if name in SHIPPED else "grpo_alfworld").text)
    content.setdefault("trainer", {})["total_training_steps"] = STEPS
    file = place / f"{name}.yaml"
    file.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
    return file


def commands(files: list[Path], monkeypatch: pytest.MonkeyPatch, *overrides: str) -> list[tuple[list[str], str]]:
    """The arguments with which `train` starts verl's main for each recipe, and the config that it checked, as YAML."""
    seen: list[list[str]] = []

    def launched(arguments: list[str], *_: object, **__: object) -> int:
        seen.append(arguments)
        return 0

    monkeypatch.setattr(training, "launch", launched)
    monkeypatch.setattr(training.Run, "save_policy", lambda run: None)
    monkeypatch.setattr(training, "_write_report", lambda run, report: None)
    checked = []
    for file in files:
        plan = plan_run(str(file), overrides, name="one")
        checked.append(OmegaConf.to_yaml(plan.config, resolve=False))
        start(plan, lambda text: None)
    assert all(arguments[0] == "verl.trainer.main_ppo" for arguments in seen)
    return [(arguments[1:], config) for arguments, config in zip(seen, checked, strict=True)]


def ran(arguments: list[list[str]], folder: Path) -> list[str]:
    """What verl's own main composes for each command, as YAML."""
    given = json.dumps(arguments)
    done = subprocess.run([sys.executable, "-c", COMPOSES], cwd=folder, input=given, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith('"')]


def check_runs(names: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch, *overrides: str) -> None:
    monkeypatch.chdir(folder)
    planned = commands([edited(name, folder) for name in names], monkeypatch, *overrides)
    for name, (_, checked), text in zip(names, planned, ran([words for words, _ in planned], folder), strict=True):
        assert OmegaConf.create(text) == OmegaConf.create(checked), name
        assert OmegaConf.create(text).trainer.total_training_steps == STEPS, name


@pytest.mark.slow
def test_a_copy_under_a_taken_name_is_what_verls_main_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_runs(["himac_alfworld", "evaluation"], tmp_path, monkeypatch, "hier.sampler.plans=2", "+trainer.new=1")


@pytest.mark.long
def test_every_taken_and_every_odd_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them in one folder, whose name no shell and no grammar likes either."""
    odd = tmp_path / "папка with=signs @%# 🌲"
    odd.mkdir()
    check_runs([*TAKEN, *ODD], odd, monkeypatch)


def test_a_taken_name_composes_as_the_users_file(tmp_path: Path) -> None:
    """Every fifth of them; the long test above has them all."""
    for file in [edited(name, tmp_path) for name in (*TAKEN[::5], *ODD)]:
        assert compose(str(file)).trainer.total_training_steps == STEPS, file.name


def test_a_recipe_may_extend_the_shipped_one_that_has_its_name(tmp_path: Path) -> None:
    (tmp_path / "quickstart.yaml").write_text("defaults: [quickstart, _self_]\ntrainer: {total_training_steps: 7}\n")
    (tmp_path / "mine.yaml").write_text("defaults: [quickstart, _self_]\ntrainer: {test_freq: 3}\n")
    config = compose(str(tmp_path / "quickstart.yaml"))
    assert config.trainer.total_training_steps == STEPS and config.hier.worker.name == "planner_executor"
    with pytest.raises(RecipeError, match="a file in its defaults names itself"):
        compose(str(tmp_path / "mine.yaml"))


def test_a_group_of_the_users_own_wins_over_the_shipped_one_of_its_name(tmp_path: Path) -> None:
    own = tmp_path / "hier" / "environment" / "tiny"
    own.mkdir(parents=True)
    (own / "alfworld.yaml").write_text("# @package _global_\nhier: {environment: {name: alfworld, pool: 17}}\n")
    assert compose(str(edited("grpo_alfworld", tmp_path))).hier.environment.pool == 17


def test_what_a_recipe_says_to_hydra_reaches_it(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("defaults: [quickstart, override hydra/job_logging: none, _self_]\nhydra: {verbose: true}\n")
    config = compose(str(file))
    arguments = hand_over(config, find(str(file)), ["hydra.output_subdir=here", "hier.seed=1"], tmp_path / "out")
    assert arguments[-1] == "hydra.output_subdir=here" and "hydra" not in config
    written = OmegaConf.load(tmp_path / "out" / f"{NAME}.yaml")
    assert written.defaults[0] == {"override hydra/job_logging": "none"} and written.hydra == {"verbose": True}


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc.:é🌲 -", min_size=1), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=25, deadline=None)
@given(value=VALUES)
def test_any_value_is_handed_over_as_it_is(tmp_path_factory: pytest.TempPathFactory, value: object) -> None:
    folder = tmp_path_factory.mktemp("handed")
    config = OmegaConf.create({"kept": None})
    OmegaConf.update(config, "kept", _without_interpolations(value), force_add=True)
    hand_over(config, find("quickstart"), [], folder)  # raises where the file would be read as something else


def _without_interpolations(value: object) -> object:
    if isinstance(value, str):
        return value.replace("$", "§").replace("???", "?")
    if isinstance(value, list):
        return [_without_interpolations(each) for each in value]
    if isinstance(value, dict):
        return {key: _without_interpolations(each) for key, each in value.items()}
    return value


@settings(max_examples=200, deadline=None)
@given(text=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="$\0")))
def test_any_text_that_we_quote_is_read_back_by_hydra(text: str) -> None:
    from hydra.core.override_parser.overrides_parser import OverridesParser

    assert OverridesParser.create().parse_override(f"key={hydra_value(text)}").value() == text
