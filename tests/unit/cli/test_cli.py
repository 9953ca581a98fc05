"""The command line: what it prints, how fast it answers, how it passes a run's end on, and what `new` makes."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from tests.fixtures.distributions import Install, estimator_source, model_folder
from tests.fixtures.played_trainer import SOURCE
from verl_hier.cli.main import main
from verl_hier.cli.output import StepBar
from verl_hier.ops import training
from verl_hier.ops.new import EXAMPLES
from verl_hier.recipe import handover

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def verl_hier(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """Call the command line in this process; returns exit code, stdout, stderr."""

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["verl-hier", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            main()
        out = capfd.readouterr()
        return int(end.value.code or 0), out.out, out.err

    return run


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; import verl_hier.cli.main; "
        "heavy = {'torch', 'verl', 'ray', 'hydra', 'numpy', 'pluggy', 'transformers'} & set(sys.modules); "
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_command_has_a_help_line(verl_hier: Run) -> None:
    code, out, _ = verl_hier("--help")
    assert code == 0
    for command in (
        "check",
        "train",
        "recipes",
        "coldstart",
        "tiny",
        "demos",
        "sft",
        "doctor",
        "plugins",
        "new",
        "conformance",
        "credit",
    ):
        assert f"  {command} " in out
    assert "..." not in out.partition("Commands:")[2], "a help line is cut"


def test_version(verl_hier: Run) -> None:
    from verl_hier import __version__

    assert verl_hier("--version")[1].strip() == f"verl-hier {__version__}"


def test_recipes(verl_hier: Run) -> None:
    _, out, _ = verl_hier("recipes", "--names")
    assert "quickstart" in out.splitlines() and "himac_alfworld" in out.splitlines()
    _, out, _ = verl_hier("recipes")
    assert max(map(len, out.splitlines())) <= 80
    assert "HiMAC on two-goal households" in out
    rows = {line.partition(" ")[0]: line.partition(" ")[2].strip() for line in out.splitlines() if line}
    assert rows["hgpo"] == "alfworld" and rows["overprovision"] == "alfworld (cpu)"
    assert rows["grpo"].startswith("alfworld, bug_reproduction, frozenlake (cpu), ")
    _, out, _ = verl_hier("recipes", "latr")
    assert out.splitlines()[0] == "latr_alfworld: LATR on text households." and out.count("server=vllm_topk") == 4
    code, _, err = verl_hier("recipes", "nothing")
    assert code == 2 and "no recipe has 'nothing' in its name" in err


@pytest.mark.slow
def test_check_all_goes_through_what_a_recipe_offers(verl_hier: Run) -> None:
    code, out, _ = verl_hier("check", "latr_alfworld", "--all")
    assert code == 0
    *lines, last = (text for text in out.splitlines() if "latr_alfworld " in text or "combinations" in text)
    assert len(lines) == 5 and all(text.endswith(": ok") for text in lines)
    assert "latr_alfworld size=node model=qwen2.5-7b-instruct server=vllm_topk: ok" in lines
    assert last.startswith("5 combinations in ") and last.endswith(" s, 0 refused")
    code, out, _ = verl_hier("check", "quickstart", "hier.seed=no", "--all")
    assert code == 2 and "quickstart size=cpu model=tiny server=vllm_cpu: refused: hier.seed: expected" in out
    code, _, err = verl_hier("check")
    assert code == 2 and "name a recipe" in err


def test_a_recipe_is_sound_before_its_small_model_exists(
    verl_hier: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = verl_hier("check", "himac_alfworld", "hier.environment.goals=2", "trainer.save_freq=5")
    assert code == 0, err
    assert "runs/coldstart/alfworld_planner_executor/model (to be made first)" in out
    recipe = "himac_alfworld hier.environment.goals=2"
    made = f"verl-hier coldstart {recipe}"
    assert out.splitlines()[-1].strip() == made
    code, _, err = verl_hier("train", "himac_alfworld", "hier.environment.goals=2")
    assert code == 2 and "there is no model at 'runs/coldstart/alfworld_planner_executor/model' yet" in err
    assert f"`{made}`" in err
    _, out, _ = verl_hier("check", "chain_of_agents_alfworld", "server=vllm_cpu")
    assert out.splitlines()[-1].strip() == "verl-hier coldstart chain_of_agents_alfworld server=vllm_cpu"
    code, _, err = verl_hier("check", "himac_alfworld", f"actor_rollout_ref.model.path={tmp_path / 'mistyped'}")
    assert code == 2 and "there is no model at" in err


def test_check_prints_what_would_run(verl_hier: Run, tmp_path: Path) -> None:
    model = model_folder(tmp_path / "model")
    code, out, _ = verl_hier("check", "quickstart", f"actor_rollout_ref.model.path={model}")
    assert code == 0
    for words in ("quickstart can run", "planner_executor", "8 tasks x 8 episodes, 2 optimiser step(s)", "GiB"):
        assert words in out


def test_plugins_shows_state_origin_and_reason(verl_hier: Run, install: Install) -> None:
    install("good-dist", {"good": "good_plugin"}, {"good_plugin.py": estimator_source("good")}, version="3.1")
    install("boom-dist", {"boom": "boom_plugin"}, {"boom_plugin.py": "1 / 0"})
    rows = {line.split()[0]: line for line in verl_hier("plugins")[1].splitlines()}
    assert "enabled" in rows["himac"] and "estimator himac" in rows["himac"]
    assert "off" in rows["good"] and "good-dist 3.1" in rows["good"]
    out = verl_hier("plugins", "--enable", "good", "--enable", "boom")[1]
    rows = {line.split()[0]: line for line in out.splitlines()}
    assert "estimator good" in rows["good"] and "blocked" in rows["boom"] and "ZeroDivisionError" in out


@pytest.mark.parametrize("kind", ["environments", "workers", "samplers", "estimators", "schedules"])
def test_parts_are_listed_and_explained(verl_hier: Run, kind: str) -> None:
    code, out, _ = verl_hier(kind)
    assert code == 0
    names = [line.split()[0] for line in out.splitlines()[1:] if not line.startswith(" ")]
    assert max(map(len, out.splitlines())) <= 80
    for name in names:
        code, out, _ = verl_hier(kind, name)
        assert code == 0 and f"options (hier.{kind[:-1]})" in out, name


def test_an_option_is_explained_with_type_default_and_text(verl_hier: Run) -> None:
    _, out, _ = verl_hier("samplers", "nested")
    (row,) = [line for line in out.splitlines() if line.startswith("plans ")]
    assert row.split()[1:6] == ["int", "at", "least", "1", "8"] and "Plans a task" in row
    _, out, _ = verl_hier("environments", "alfworld")
    (row,) = [line for line in out.splitlines() if line.startswith("invalid_penalty")]
    assert "Subtracted from the reward" in row
    _, out, _ = verl_hier("samplers", "aepo")
    (row,) = [line for line in out.splitlines() if line.startswith("beam_size ")]
    assert "A chain may get" in row, "inherited options keep their text"


def test_an_unknown_part(verl_hier: Run) -> None:
    code, _, err = verl_hier("estimators", "himca")
    assert code == 2 and "did you mean 'himac'?" in err


def test_doctor_is_content_here(verl_hier: Run) -> None:
    code, out, err = verl_hier("doctor", "--verbose")
    assert code == 0, err
    assert "trainer._update_actor" in out and "tested: >=0.9.1,<0.10" in out and "everything in order" in out
    assert "broken" not in out


def test_doctor_fails_for_a_broken_seam_and_a_blocked_plugin(
    verl_hier: Run, install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    from verl_hier.compat.seams import inspection, seam
    from verl_hier.compat.seams import table as seams

    gone = seam.Seam("gone", "verl:gone", "why", "link", "removal", inspection.exists("verl:gone"))
    monkeypatch.setattr(seams, "SEAMS", (gone,))
    install("boom-dist", {"boom": "boom_plugin"}, {"boom_plugin.py": "1 / 0"})
    code, _, err = verl_hier("doctor", "--enable", "boom")
    assert code == 1
    assert "2 problem(s)" in err and "seam gone: verl:gone does not exist any more" in err and "boom-dist" in err


def test_a_failed_registration_with_verl_is_not_swallowed(
    verl_hier: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from verl_hier.compat import entry
    from verl_hier.compat.seams import table as seams

    monkeypatch.setattr(entry, "FAILURE", RuntimeError("verl has already settled on a platform"))
    monkeypatch.setattr(seams, "SEAMS", ())
    code, _, err = verl_hier("doctor")
    assert code == 1 and "could not register itself with verl: verl has already settled" in err
    model = model_folder(tmp_path / "model")
    code, _, err = verl_hier("check", "quickstart", "--ready", f"actor_rollout_ref.model.path={model}")
    assert code == 2 and "could not register itself with verl" in err


def test_conformance_says_what_differs(verl_hier: Run, tmp_path: Path) -> None:
    code, _, err = verl_hier("conformance", tmp_path)
    assert code == 2 and "no fixture files" in err
    (tmp_path / "odd.json").write_text('{"method": "nonsense", "cases": []}')
    code, out, _ = verl_hier("conformance", tmp_path)
    assert code == 1 and "odd.json" in out


def test_credit_of_stored_graphs(verl_hier: Run, tmp_path: Path) -> None:
    stored, out = tmp_path / "graphs.jsonl", tmp_path / "credit.jsonl"
    asyncio.run(store_graphs(stored))
    code, printed, err = verl_hier("credit", stored, "--estimator", "grpo", "--set", "scale=none", "--out", out)
    assert code == 0 and "turns: " in printed, err
    credits = [json.loads(text)["credit"] for text in out.read_text().splitlines()]
    assert credits and abs(sum(credits)) < 1e-9
    code, printed, err = verl_hier("credit", stored, "--compare", "grpo,rloo,gigpo", "--set", "gigpo.omega=0")
    assert code == 0 and [line.split()[0] for line in printed.splitlines()[2:]] == ["grpo", "rloo", "gigpo"], err


def test_credit_says_what_is_missing(verl_hier: Run, tmp_path: Path) -> None:
    assert "either --estimator NAME" in verl_hier("credit", tmp_path)[2]
    assert "--out FILE.jsonl" in verl_hier("credit", tmp_path, "--estimator", "grpo")[2]
    assert "NAME.omega" in verl_hier("credit", tmp_path, "--compare", "grpo,gigpo", "--set", "omega=0")[2]
    assert "did you mean 'gigpo'?" in verl_hier("credit", tmp_path, "--compare", "grpo,gigpoo")[2]


async def store_graphs(path: Path) -> None:
    """One task with four episodes of three turns, half of them won."""
    from verl_hier.environments.base import Environment, StepResult
    from verl_hier.graph import write_graphs
    from verl_hier.host.manager import DEFAULT_ENABLED, PluginHost
    from verl_hier.testing.rollout import roll_out_scripted

    class Three(Environment):
        def reset(self, task: object, seed: int) -> StepResult:
            self._left = 3
            return StepResult(text="start", anchor="s3")

        def step(self, action: str) -> StepResult:
            self._left -= 1
            done = self._left == 0
            return StepResult(text="on", done=done, reward=float(done and action == "go"), anchor=f"s{self._left}")

    host = PluginHost.load(DEFAULT_ENABLED)
    worker, sampler = host.spec("worker", "react"), host.spec("sampler", "independent")
    graph, _ = await roll_out_scripted(
        environment=Three,
        worker=lambda: worker.factory(worker.options()),
        sampler=sampler.factory(sampler.options()),
        answer=lambda prompt, sampling: "go" if (sampling.seed or 0) % 2 else "stay",
    )
    write_graphs(path, [graph])


# ---- train -------------------------------------------------------------------------------------------------------


@pytest.fixture
def played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """A script plays the process of verl's trainer, in an empty folder; returns the overrides of the model."""
    (tmp_path / "played.py").write_text(SOURCE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(handover, "MAIN", "played")
    path = f"actor_rollout_ref.model.path={model_folder(tmp_path / 'model')}"
    return [path, "trainer.total_training_steps=2", "trainer.save_freq=1"]


def test_train_tells_the_steps_and_what_comes_next(verl_hier: Run, played: list[object]) -> None:
    code, out, err = verl_hier("train", "quickstart", *played, "hier.sampler.plans=2", "--name", "one")
    assert code == 0, err
    assert "nested  plans=2" in out and "a new run in runs/quickstart/one" in out and "train.log" in out
    assert "step 1/2  A: planner    success 0.10  return 0.05   8.1k tokens    2.0 s  2 s left" in out
    lines = [" ".join(text.split()) for text in out.splitlines()]
    assert "2 steps in 4 s, its start not counted; the last one: success 0.20, return 0.10" in lines
    assert "policy runs/quickstart/one/model" in lines
    assert lines[-1] == "next: verl-hier eval runs/quickstart/one"


def test_train_ends_with_the_exit_code_of_the_run(
    verl_hier: Run, played: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAIL_AT", "2")
    code, _, err = verl_hier("train", "quickstart", *played, "--name", "one", "trainer.save_freq=1")
    assert code == 7 and err.count("\n") == 1
    assert err.startswith("verl-hier: the run ended with exit code 7: the server is gone - `verl-hier train quickstart")
    monkeypatch.delenv("FAIL_AT")
    code, out, err = verl_hier("train", "quickstart", "--resume")
    assert code == 0 and "runs/quickstart/one goes on from step 1" in out, err


def test_train_starts_verls_main_with_the_platform_of_the_recipe(
    verl_hier: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[list[str], dict[str, str]]] = []

    def launched(arguments: list[str], log: Path, variables: dict[str, str], *_: object, **__: object) -> int:
        seen.append((arguments, variables))
        return 0

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(training, "launch", launched)
    place = f"actor_rollout_ref.model.path={model_folder(tmp_path / 'model')}"
    assert verl_hier("train", "quickstart", place, "hier.sampler.plans=2")[0] == 0
    ((arguments, variables),) = seen
    assert arguments[:2] == ["verl.trainer.main_ppo", "--config-path"] and len(arguments) == 6
    composed = OmegaConf.load(Path(arguments[2], f"{arguments[4]}.yaml"))
    assert composed.hier.sampler.plans == 2 and list(composed.trainer.logger) == ["console", "file"]
    assert variables["VERL_PLATFORM"] == "cpu"


# ---- cold start ---------------------------------------------------------------------------------------------------


def test_cold_start_commands_say_what_comes_first(verl_hier: Run, tmp_path: Path) -> None:
    code, _, err = verl_hier("demos", "quickstart", "--model", tmp_path)
    assert code == 2 and "verl-hier tiny quickstart" in err
    code, _, err = verl_hier("sft", tmp_path / "none.parquet", "--model", tmp_path)
    assert code == 2 and "verl-hier demos RECIPE" in err


def test_a_cold_start_is_for_small_models(verl_hier: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for command in (("coldstart",), ("train", "--from-scratch")):
        code, _, err = verl_hier(*command, "himac_alfworld", "size=node")
        assert code == 2 and err.startswith("verl-hier: hier/model: himac_alfworld trains Qwen/Qwen2.5-1.5B-Instruct")
    assert not any(tmp_path.iterdir())


def test_progress_outside_of_a_terminal_is_a_line_for_each_tenth(capsys: pytest.CaptureFixture[str]) -> None:
    with StepBar("training") as bar:
        for step in (1, 2, 3, 19, 20):
            bar(step, 20, 1 / step)
    lines = [text.strip() for text in capsys.readouterr().out.splitlines()]
    assert lines == ["step 2 of 20, loss 0.500", "step 19 of 20, loss 0.053", "step 20 of 20, loss 0.050"]


def test_tiny_and_demos_make_what_the_recipe_needs(verl_hier: Run, tmp_path: Path) -> None:
    pytest.importorskip("alfworld")
    pool = ("hier.environment.pool=8", "hier.environment.validation=2")
    code, out, _ = verl_hier("tiny", "quickstart", *pool, "hier.coldstart.head_dim=32", "--out", tmp_path / "tiny")
    assert code == 0 and f"--model {tmp_path / 'tiny'}" in out.splitlines()[-1]
    assert json.loads((tmp_path / "tiny/config.json").read_text())["head_dim"] == 32
    few = (*pool, "hier.coldstart.episodes=4")
    code, out, err = verl_hier("demos", "quickstart", *few, "--model", tmp_path / "tiny")
    assert code == 0, err
    file = tmp_path / "demonstrations.parquet"
    assert out.splitlines()[-1] == f"next: verl-hier sft {file} --model {tmp_path / 'tiny'}" and file.is_file()
    code, _, err = verl_hier("check", "quickstart", f"actor_rollout_ref.model.path={tmp_path / 'tiny'}")
    assert code == 0, err


# ---- new ----------------------------------------------------------------------------------------------------------


COUNT_TO = Path(__file__).parents[3] / "examples/plugins/count_to"
KINDS = ("estimator", "worker", "sampler", "environment", "schedule", "method")
COMPOSED = """
defaults: [ppo_trainer, hier/base, hier/size/cpu, _self_]
hier:
  plugins: {my_estimator: true, my_worker: true, my_sampler: true, my_environment: true, my_schedule: true}
  environment: {name: my_environment, highest: 8}
  worker: {name: my_worker}
  sampler: {name: my_sampler, trees: 2}
  estimator: {name: my_estimator}
  schedule: {name: my_schedule, level: 0}
  rollout: {template: plain, max_tokens_per_turn: 16}
actor_rollout_ref:
  rollout: {n: 4}
data: {train_batch_size: 4, max_prompt_length: 64, max_response_length: 256}
trainer: {experiment_name: mine, save_freq: -1, test_freq: -1}
"""


def installed(package: Path, name: str) -> Path:
    """A package as `pip install -e` would leave it: the entry point, and the module on the path."""
    info = package / f"{name}-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text(f"[verl_hier.plugins]\n{name} = {name}\n")
    return package


@pytest.mark.slow
def test_new_makes_packages_of_every_kind_that_pass_their_tests_and_compose_a_recipe(
    verl_hier: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = []
    for kind in KINDS:
        code, out, err = verl_hier("new", kind, f"my_{kind}", "--into", tmp_path)
        assert code == 0 and f"my-{kind}/pyproject.toml" in out, err
        folders.append(installed(tmp_path / f"my-{kind}", f"my_{kind}"))
        monkeypatch.syspath_prepend(str(folders[-1]))
        written = "".join(file.read_text() for file in folders[-1].rglob("*") if file.is_file()).lower()
        assert not any(old in written for old in (EXAMPLES[kind], EXAMPLES[kind].replace("_", "-")))
        assert not (folders[-1] / "build").exists()
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *map(str, folders)]
    path = os.pathsep.join(map(str, folders))
    done = subprocess.run(command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    lint = [sys.executable, "-m", "ruff", "check", "--isolated", "--line-length=120", *map(str, folders)]
    done = subprocess.run(lint, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    recipe = tmp_path / "mine.yaml"
    recipe.write_text(COMPOSED)
    model = model_folder(tmp_path / "model")
    code, out, err = verl_hier("check", recipe, f"actor_rollout_ref.model.path={model}")
    assert code == 0 and all(f"my_{kind}" in out for kind in KINDS if kind != "method"), err
    for kind in ("environment", "method"):
        code, out, err = verl_hier("check", tmp_path / f"my-{kind}" / f"my_{kind}.yaml")
        assert code == 0 and f"verl-hier new {kind}" not in out, err


@pytest.mark.parametrize("environment", ["sokoban", "frozenlake", "count_to"])
def test_a_new_method_is_on_the_environment_of_its_user(
    verl_hier: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, environment: str
) -> None:
    # Who has installed the example from this checkout has left its metadata in the folder.
    theirs = shutil.copytree(COUNT_TO, tmp_path / "theirs", ignore=shutil.ignore_patterns("*.egg-info"))
    monkeypatch.syspath_prepend(str(installed(theirs, "count_to")))
    name = f"on_{environment}"
    code, _, err = verl_hier("new", "method", name, "--environment", environment, "--into", tmp_path)
    assert code == 0, err
    package = installed(tmp_path / name.replace("_", "-"), name)
    monkeypatch.syspath_prepend(str(package))
    recipe = package / f"{name}.yaml"
    assert f"{name} on {environment}" in recipe.read_text() and "alfworld" not in recipe.read_text()
    code, out, err = verl_hier("check", recipe)
    assert code == 0 and ("textarena" if environment == "frozenlake" else environment) in out, err


def test_a_new_method_needs_an_environment_that_there_is(verl_hier: Run, tmp_path: Path) -> None:
    code, _, err = verl_hier("new", "method", "ours", "--environment", "sokban", "--into", tmp_path)
    assert code == 2 and "did you mean 'sokoban'?" in err
    code, _, err = verl_hier("new", "worker", "ours", "--environment", "sokoban", "--into", tmp_path)
    assert code == 2 and "leave it out for a new worker" in err and not list(tmp_path.iterdir())


def test_new_recipe_copies_one_that_then_composes_under_its_own_name(verl_hier: Run, tmp_path: Path) -> None:
    code, out, err = verl_hier("new", "recipe", "mine", "--like", "quickstart", "--into", tmp_path)
    assert code == 0 and "verl-hier check" in out, err
    code, out, err = verl_hier("check", tmp_path / "mine.yaml")
    assert code == 0 and "planner_executor" in out, err
    text = (tmp_path / "mine.yaml").read_text()
    assert "name: mine" in text and "name: quickstart" not in text
    verl_hier("new", "recipe", "flat_one", "--into", tmp_path)
    code, out, err = verl_hier("check", tmp_path / "flat_one.yaml", "size=node")
    assert code == 0, err


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("quickstart", "already is a shipped recipe"),
        ("My Recipe", "cannot name a recipe"),
        ("twice", "exists; choose another name"),
    ],
)
def test_new_recipe_refuses_names_that_are_taken(verl_hier: Run, tmp_path: Path, name: str, sentence: str) -> None:
    (tmp_path / "twice.yaml").touch()
    code, _, err = verl_hier("new", "recipe", name, "--into", tmp_path)
    assert code == 2 and sentence in err
    assert [path.name for path in tmp_path.iterdir()] == ["twice.yaml"]


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("json", "standard library"),
        ("yaml", "is an installed Python package"),
        ("pip", "is installed already"),
        ("class", "cannot name a Python module"),
        ("_hidden", "cannot name a Python module"),
        ("tests", "has a meaning of its own"),
        ("options", "makes a class Options"),
        ("gigpo", "already is a plugin called 'gigpo'"),
        ("react", "already is a plugin called 'react'"),
        ("builtin", "already is a plugin called 'builtin'"),
    ],
)
def test_new_refuses_names_that_hide_something(verl_hier: Run, tmp_path: Path, name: str, sentence: str) -> None:
    code, _, err = verl_hier("new", "environment", name, "--into", tmp_path)
    assert code == 2 and sentence in err
    assert not list(tmp_path.iterdir())


def test_new_refuses_bad_names_and_existing_folders(verl_hier: Run, tmp_path: Path) -> None:
    assert "cannot name a Python module" in verl_hier("new", "worker", "My-Worker", "--into", tmp_path)[2]
    assert "already is a built-in estimator" in verl_hier("new", "estimator", "grpo", "--into", tmp_path)[2]
    verl_hier("new", "worker", "twice", "--into", tmp_path)
    assert "exists" in verl_hier("new", "worker", "twice", "--into", tmp_path)[2]


# ---- lists --------------------------------------------------------------------------------------------------------


def test_lists_fit_a_terminal_and_take_a_word(verl_hier: Run) -> None:
    for command in (("plugins",), ("plugins", "tree"), ("estimators", "gae"), ("recipes",), ("recipes", "alfworld")):
        code, out, _ = verl_hier(*command)
        assert code == 0 and max(map(len, out.splitlines())) <= 80, command
    names = [row.split()[0] for row in verl_hier("estimators", "gae")[1].splitlines()[1:] if not row.startswith(" ")]
    assert {"hiper", "marft"} <= set(names) and "grpo" not in names
    assert "tree_grpo" in verl_hier("plugins", "TREE")[1] and "himac" not in verl_hier("plugins", "TREE")[1]
    code, _, err = verl_hier("plugins", "nonsense")
    assert code == 2 and "no plugin has 'nonsense'" in err


# ---- what is missing here -----------------------------------------------------------------------------------------


def test_check_lists_what_this_machine_lacks(verl_hier: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert verl_hier("check", "grpo_python_tool")[0] == 0
    code, out, _ = verl_hier("check", "grpo_python_tool", "--ready")
    assert code == 2 and "not ready on this machine:" in out
    first = out.partition("first run:\n")[2].splitlines()
    assert first and first[0].strip() == "verl-hier coldstart grpo_python_tool"
    monkeypatch.setattr("verl_hier.recipe.checks.machine.available_bytes", lambda: 2**20)
    assert "GiB are free" in verl_hier("check", "grpo_python_tool", "--ready")[1]


def test_check_says_that_a_recipe_is_ready(verl_hier: Run, tmp_path: Path) -> None:
    model = model_folder(tmp_path / "model")
    code, out, err = verl_hier("check", "grpo_python_tool", "--ready", f"actor_rollout_ref.model.path={model}")
    assert code == 0 and "ready: this machine has everything that it needs" in out, err
