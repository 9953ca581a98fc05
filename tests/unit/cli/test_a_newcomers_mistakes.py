"""The mistakes of somebody's first hour: each is provoked, and the sentence says what to change and where it is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.fixtures.distributions import Install, model_folder
from tests.fixtures.written_runs import training, write_run
from verl_hier.cli.main import app, main
from verl_hier.errors import HierError, RecipeError
from verl_hier.host.manager import PluginHost
from verl_hier.host.renamed import RENAMED, now
from verl_hier.ops.quickstart import EXPECTED, HOUSEHOLDS, SHOP, Quickstart, conclusion, start_overrides, world_here
from verl_hier.ops.report import write_report
from verl_hier.ops.start_up import PHASES, StartUp
from verl_hier.ops.stored import Stored
from verl_hier.recipe.check import check_recipe
from verl_hier.recipe.checks import world as checks_of_worlds
from verl_hier.recipe.checks.machine import memory_of
from verl_hier.recipe.compose import compose
from verl_hier.recipe.composed import ComposedRecipe

ROOT = Path(__file__).resolve().parents[3]
BROKEN = {
    "hier: {enviroment: {name: alfworld}}": ["hier.enviroment", "did you mean 'environment'?"],
    "hier:\n  sampler: {name: nested}\n   plans: 3": ["line 4", "'plans: 3'", "line 3"],
    "hier: {sampler: {name: nested}\ntrainer: 1": ["line 3", "'trainer: 1'"],
    "hier: {}\ntrainer: {total_epochs: 1}\nhier: {seed: 1}": ["'hier' stands twice", "line 2", "line 4"],
    "hier: {worker: {executor_prompt: 'Do {instructions}'}}": ["executor_prompt", "did you mean 'instruction'?"],
    "hier: {rewards: {mine: {function: 'my_rewards:score'}}}": ["my_rewards.py is in", "`PYTHONPATH=.`"],
    "hier: {rewards: {mine: {function: 'wrong:score'}}}": ["hier.rewards.mine.function", "'wrong' cannot be imported"],
}
LISTS = {
    "": ["is empty", "`defaults: ["],
    "defaults: [hier/base, hier/method: himac, _self_]": ["lacks `ppo_trainer`"],
    "defaults: [ppo_trainer, hier/method: himac, _self_]": ["lacks `hier/base`"],
    "defaults: [ppo_trainer, hier/base, hier/method: grppo, _self_]": ["hier/method", "did you mean 'grpo'?"],
    "defaults: [ppo_trainer, hier/base, hier/environment: alfwrld, _self_]": ["did you mean 'alfworld'?"],
}


@pytest.mark.parametrize(("text", "says"), [*BROKEN.items(), *LISTS.items()])
def test_a_recipe_with_a_mistake(text: str, says: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my_rewards.py").write_text("def score(episode):\n    return 1.0\n")
    Path("mine.yaml").write_text(text if text in LISTS else f"defaults: [himac_alfworld, _self_]\n{text}\n")
    with pytest.raises(HierError) as refused:
        check_recipe(compose("mine.yaml"))
    assert not [word for word in says if word not in str(refused.value)], refused.value
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(("block", "line"), [("enviroment: {}", 4), ("sampler: {plans: four}", 4), ("x: {y: 1}", 4)])
def test_a_wrong_key_of_a_file_has_its_line(
    block: str, line: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text(f"defaults: [himac_alfworld, _self_]\nhier:\n  # mine\n  {block}\n")
    monkeypatch.setattr(sys, "argv", ["verl-hier", "check", "mine.yaml"])
    with pytest.raises(SystemExit):
        main()
    assert capsys.readouterr().err.startswith(f"verl-hier: mine.yaml:{line}: hier.{block.partition(':')[0]}")


def test_what_a_plugin_raises_at_import_has_file_and_line(install: Install) -> None:
    install("boom", {"boom": "boom"}, {"boom.py": "import os\n\nraise RuntimeError('boom')\n"})
    with pytest.raises(HierError, match=r"boom.py:3\)"):
        PluginHost.load({"boom": True})


@pytest.mark.parametrize("code", ["import verl_hier.specs", "from verl_hier.environments.base import Step"])
def test_a_plugin_with_a_former_name_is_told_the_present_one(code: str, install: Install) -> None:
    install("old", {"old": "old"}, {"old.py": f"{code}\n"})
    with pytest.raises(HierError) as refused:
        PluginHost.load({"old": True})
    former = "verl_hier.specs" if "specs" in code else "verl_hier.environments.base.Step"
    assert f"{former} is now {RENAMED[former]}" in str(refused.value)


@pytest.mark.parametrize("former", RENAMED)
def test_no_former_name_is_still_there_and_each_error_of_one_is_understood(former: str) -> None:
    home, _, name = former.rpartition(".")
    form = f"from {home} import {name}" if home.startswith("verl_hier.") else f"import {former}"
    if not former.startswith("verl_hier"):
        from verl_hier.host.specs import EnvironmentSpec, WorkerSpec
        from verl_hier.rollout import EpisodeView

        known: dict[str, Any] = {"EnvironmentSpec": EnvironmentSpec, "WorkerSpec": WorkerSpec}
        form = f"{home}({name}=1)" if home in known else f"object.__new__(EpisodeView).{name}"
        scope = {**known, "EpisodeView": EpisodeView}
    else:
        scope = {}
    with pytest.raises((ImportError, AttributeError, TypeError)) as failed:
        exec(form, scope)
    assert f"{former} is now {RENAMED[former]}" in now(failed.value)


@pytest.mark.parametrize(
    ("recipe", "says"),
    [
        ("hiper_alfworld", {"critic": "heads", "reward": None}),
        ("archer_alfworld", {"second model": "replay"}),
        ("istar_shop", {"second model": "process_reward"}),
        ("igpo_search", {"probe": ""}),
    ],
)
def test_a_check_shows_what_else_learns(recipe: str, says: dict[str, str | None]) -> None:
    rows = check_recipe(compose(recipe)).lines()
    for what, text in says.items():
        found = [much for name, much in rows if name.startswith(what)]
        assert not found if text is None else any(text in much for much in found), rows


def test_a_check_shows_rewards_and_what_rows_share_only_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = CliRunner().invoke(app, ["check", "himac_alfworld", *REWARD]).output
    assert "reward taste" in plain and "verl_hier.rewards.answers:f1, for each episode, weight 0.5" in plain
    assert "sharing" not in plain
    verbose = CliRunner().invoke(app, ["check", "--verbose", "himac_alfworld"]).output
    assert "share a prompt of 2 to 192 tokens" in " ".join(verbose.split())


def test_a_check_shows_further_policies() -> None:
    policy = "+hier.policies.planner={roles: [planner], train: none}"
    rows = dict(check_recipe(compose("himac_alfworld", [policy])).lines())
    assert rows["policy planner"] == "from the model of actor_rollout_ref, never learns, roles planner"


REWARD = ["+hier.rewards.taste={function: 'verl_hier.rewards.answers:f1', weight: 0.5}"]


def test_the_line_that_takes_the_memory_is_named(tmp_path: Path) -> None:
    recipe = ComposedRecipe.named("grpo_sokoban", ["hier.rollout.environment_processes=400"])
    from verl_hier.recipe.checks.model import model_facts

    needed = memory_of(recipe, model_facts({"path": str(model_folder(tmp_path / "model"))}, "actor_rollout_ref.model"))
    assert needed is not None and max(needed, key=needed.__getitem__) == "hier.rollout.environment_processes"


def test_a_server_of_ones_own_meets_no_setting_of_the_sample(tmp_path: Path) -> None:
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text('{"instruction": "x", "answers": ["y"]}\n' * 40)
    own = ComposedRecipe.named(
        "himac_mcp", ["hier.environment.url=http://localhost:1/mcp", f"hier.environment.data_path={tasks}"]
    )
    options = own.parts.environment.options
    assert (options.state, options.state_key, options.hidden) == ("session", "", ())
    sample = ComposedRecipe.named("himac_mcp").parts.environment.options
    assert (sample.state, sample.state_key, sample.hidden) == ("argument", "house", ("furnish",))


def test_the_start_is_told_by_phases_with_the_time_left() -> None:
    clock = iter([0.0, 40.0, 70.0, 87.0, 100.0])
    start_up = StartUp(lambda: next(clock))
    told = [sentence for says, *_ in PHASES for sentence in start_up.take([b"x", b"(pid=1) INFO: " + says + b", 12"])]
    assert told == [
        "  Ray runs after 40 s; about 60 s to the first step",
        "  the tasks are made after 70 s; about 30 s to the first step",
        "  the trainer has its model after 87 s; about 13 s to the first step",
        "  the rollout servers have theirs after 2 min; the first step begins",
    ]
    assert not list(start_up.take([PHASES[0][0]])), "a phase is told once"


def test_a_quickstart_ends_with_what_was_gained() -> None:
    summary = {
        "success_before": 0.266,
        "success_after": 0.484,
        "held_out_episodes": 256,
        "success_in_training": 0.78,
    }
    gained, other = conclusion(summary, Quickstart())
    assert gained.startswith("held-out success 26.6% → 48.4%, +21.8 points (± 8 by chance") and "20 to 40" in gained
    assert "78.0%" in other and "greedily" in other
    assert "expected" not in next(conclusion(summary, Quickstart(steps=4)))
    assert "expected" not in next(conclusion(summary, Quickstart(world=SHOP)))
    page = (ROOT / "docs/quickstart.md").read_text()
    assert f"Expect {EXPECTED[0]} to {EXPECTED[1]} points" in page


def test_a_quickstart_without_a_compiler_is_in_the_shop(monkeypatch: pytest.MonkeyPatch) -> None:
    assert world_here() is HOUSEHOLDS
    there = checks_of_worlds.importlib.util.find_spec
    monkeypatch.setattr(
        checks_of_worlds.importlib.util, "find_spec", lambda name: None if name == "alfworld" else there(name)
    )
    assert world_here() is SHOP
    report = check_recipe(compose(SHOP.recipe, start_overrides(Quickstart(world=SHOP))[1:]))
    assert report.parts.environment.spec.name == "shop" and report.parts.estimator.spec.name == "himac"


@pytest.mark.parametrize("compiler", [True, False])
def test_the_quickstart_goes_on_where_the_planner_cannot_be_built(tmp_path: Path, compiler: bool) -> None:
    programs = {
        "python": f'case "$*" in *"install"*alfworld*) exit {int(not compiler)};; *import*torch*) exit 0;; esac',
        "verl-hier": 'echo "verl-hier $*"',
    }
    (tmp_path / "bin").mkdir()
    for name, text in programs.items():
        (tmp_path / "bin" / name).write_text(f"#!/usr/bin/env bash\n{text}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    surroundings = {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "VIRTUAL_ENV": str(tmp_path)}
    command = [ROOT / "scripts/quickstart", "--seed", "3"]
    done = subprocess.run(command, env=surroundings, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "verl-hier quickstart --seed 3"
    assert ("ALFWorld cannot be installed here" in done.stdout) is not compiler
    assert len(list(tmp_path.glob(".verl-hier-*"))) == 1


def test_a_run_without_rollouts_says_how_to_get_them(tmp_path: Path) -> None:
    record = {"recipe": {"hier": {"store": {"path": None}}}, "name": "mine", "parts": {"worker": "react"}}
    (tmp_path / "run.json").write_text(json.dumps(record))
    with pytest.raises(HierError, match=r"hier.store.path: null; a run that is trained with `hier.store.path=graphs`"):
        Stored.at(tmp_path)
    run = write_run(tmp_path / "other", training([0.5]))
    (run.folder / "run.json").write_text(json.dumps(record))
    assert "mine; worker react" in write_report(run).read_text()


def test_doctor_ends_with_what_the_machine_can_run() -> None:
    done = CliRunner().invoke(app, ["doctor"])
    lines = done.output.splitlines()
    assert len(lines) < 40 and "recipes at size=cpu" in lines[-3] and "_cpu recipes" not in done.output
    assert lines[-1] == "everything in order"


def test_the_parts_of_a_recipe_error_are_that_of_the_recipe() -> None:
    with pytest.raises(RecipeError, match="did you mean 'ppo_mini_batch_size'"):
        check_recipe(compose("himac_alfworld", ["+actor_rollout_ref.actor.ppo_mini_batch_sise=3"]))
