"""A run's folder: what is in it, which run is resumed, what is said. A script plays the process of the trainer."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tests.fixtures.distributions import model_folder
from tests.fixtures.played_trainer import SOURCE
from verl_hier.errors import HierError, RecipeError, RunEnded
from verl_hier.ops.progress import Progress, summary
from verl_hier.ops.runs import Run
from verl_hier.ops.training import plan_run, start
from verl_hier.recipe import handover
from verl_hier.recipe.overrides import hydra_value

RUNS = Path("runs/himac_alfworld")
Train = Callable[..., tuple[Run, list[str]]]


@pytest.fixture
def train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Train:
    """`train(*overrides, name=…, resume=…)` makes a run of four steps; returns it and what was reported."""
    (tmp_path / "played.py").write_text(SOURCE)
    model = model_folder(tmp_path / "model")
    work = tmp_path / "some (odd) folder, of 'mine'"
    work.mkdir()
    monkeypatch.chdir(work)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(handover, "MAIN", "played")

    def run(*overrides: str, report: Callable[[str], None] | None = None, **options: object) -> tuple[Run, list[str]]:
        said: list[str] = []
        given = (
            f"actor_rollout_ref.model.path={model}",
            "trainer.total_training_steps=4",
            "trainer.save_freq=1",
            *overrides,
        )
        plan = plan_run("himac_alfworld", overrides if options.get("resume") else given, **options)
        return start(plan, report or said.append), said

    return run


def steps(run: Run) -> list[int]:
    return [record["step"] for record in run.metrics()]


def test_a_run_has_a_folder_of_its_own_with_everything_in_it(train: Train) -> None:
    run, said = train("hier.store.path=elsewhere", "hier.seed=3")
    assert run.folder.parent == RUNS and run == Run.open(run.folder) == Run.all_in(RUNS)[-1]
    config = run.recipe()
    assert config.hier.seed == 3 and config.trainer.total_training_steps == 4
    assert config.trainer.default_local_dir == str(run.folder.resolve() / "checkpoints")
    assert list(config.trainer.logger) == ["console", "file"] and config.hier.store.path == "elsewhere"
    assert run.command[0] == "himac_alfworld" and run.command[-1] == "hier.seed=3"
    assert run.log.read_text() == "verl has started\n" and steps(run) == [1, 2, 3, 4] and run.step == 4
    assert said[0] == f"a new run in {run.folder}" and str(run.log) in said[1]
    assert [text.split("  ")[0] for text in said[2:]] == ["step 1/4", "step 2/4", "step 3/4", "step 4/4"]
    other, _ = train()
    assert other.folder != run.folder and steps(other) == [1, 2, 3, 4]


def test_a_stored_rollout_lies_in_the_folder_unless_the_user_says_where(train: Train) -> None:
    plan = plan_run("quickstart", name="one")
    assert plan.config.hier.store.path == str(Path("runs/quickstart/one/graphs").resolve())
    plan = plan_run("quickstart", ["hier.store.path=null"], name="one")
    assert plan.config.hier.store.path is None


def test_the_policy_of_the_last_step_is_kept_in_the_precision_in_which_it_acted(train: Train) -> None:
    run, _ = train(name="one")
    assert run.model == run.saved_policy == RUNS / "one" / "model"
    assert (run.model / "model.safetensors").read_text() == "weights of step 4"
    assert json.loads((run.model / "config.json").read_text()) == {"dtype": "float32"}
    saved = run.checkpoints / "global_step_4/actor/huggingface/config.json"
    assert json.loads(saved.read_text()) == {"dtype": "bfloat16"}, "a checkpoint stays as verl wrote it"
    assert ("policy", str(run.model)) in run.contents()


def test_no_policy_where_verl_saves_none(train: Train) -> None:
    run, _ = train("trainer.save_freq=100", name="none")
    assert run.saved_policy is None and "policy" not in dict(run.contents())
    with pytest.raises(HierError, match="holds no policy that transformers can load"):
        run.model
    run, _ = train("actor_rollout_ref.model.lora_rank=4", name="adapters")
    assert run.saved_policy == run.folder / "model"
    weights = run.checkpoints / "global_step_4/actor/huggingface/model.safetensors"
    save_file({"base_model.model.lm_head.weight": torch.zeros(1)}, weights)
    assert run._policy_of_checkpoint() is None, "verl's own names of weights below an adapter"


@pytest.mark.slow
def test_resuming_takes_the_newest_run_with_its_overrides(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    train(name="first")
    monkeypatch.setenv("FAIL_AT", "3")
    with pytest.raises(RunEnded) as failed:
        train("hier.seed=5", "trainer.resume_mode=disable", name="second")
    assert failed.value.exit_code == 7
    assert str(failed.value) == (
        "the run ended with exit code 7: the server is gone - "
        "`verl-hier train himac_alfworld --name second --resume` goes on from step 2."
    )
    assert Run(RUNS / "second").model.parts[-3:] == ("global_step_2", "actor", "huggingface")
    monkeypatch.delenv("FAIL_AT")
    run, said = train("trainer.total_training_steps=5", resume=True)
    assert run.folder.name == "second" and said[0] == f"{run.folder} goes on from step 2"
    assert steps(run) == [1, 2, 3, 4, 5] and run.recipe().hier.seed == 5
    assert said[2].startswith("step 3/5") and run.log.read_text().count("verl has started") == 2
    assert (run.model / "model.safetensors").read_text() == "weights of step 5"
    assert len(run.command_file.read_text().splitlines()) == 2


@pytest.mark.slow
def test_a_name_is_resumed_by_verls_rule_or_its_earlier_run_moves_aside(
    train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAIL_AT", "2")
    with pytest.raises(RunEnded, match="no checkpoint was written yet"):
        train("trainer.save_freq=4", name="mine")
    monkeypatch.delenv("FAIL_AT")
    run, said = train(name="mine")
    assert (
        said[0]
        == f"a new run in {run.folder}; the earlier one of this name, which is not resumed, is now {RUNS}/mine.1"
    )
    assert steps(Run.open(RUNS / "mine.1")) == [1] and steps(run) == [1, 2, 3, 4]
    with pytest.raises(
        HierError, match=r"global_step_4 is the end of a run of 4 steps; .* trainer.total_training_steps=8"
    ):
        train(name="mine")
    run, said = train("trainer.total_training_steps=6", name="mine")
    assert said[0] == f"{run.folder} goes on from step 4" and steps(run) == [1, 2, 3, 4, 5, 6]
    run, said = train("trainer.resume_mode=disable", name="mine")
    assert said[0].endswith(f"is now {RUNS}/mine.2") and steps(run) == [1, 2, 3, 4]


def test_resuming_says_what_is_missing(train: Train) -> None:
    with pytest.raises(HierError, match="there is no run in runs/himac_alfworld, which holds no runs"):
        train(resume=True)
    train("trainer.save_freq=100", name="one")
    with pytest.raises(HierError, match="there is no run two in runs/himac_alfworld, which holds one"):
        train(name="two", resume=True)
    with pytest.raises(HierError, match="has no checkpoint to go on from; start it anew without --resume"):
        train(resume=True)
    with pytest.raises(HierError, match="cannot be the name of a folder"):
        train(name="one/two")
    with pytest.raises(HierError, match=r"trainer.resume_from_path: .* is not the folder of a checkpoint"):
        train("trainer.resume_mode=resume_path", "trainer.resume_from_path=runs")
    with pytest.raises(HierError, match="is not the folder of a run"):
        Run.open("runs")


@pytest.mark.slow
def test_checkpoints_elsewhere_are_resumed_by_verls_rule(train: Train, tmp_path: Path) -> None:
    place = f"trainer.default_local_dir={tmp_path}/large_disk"
    run, said = train(place, name="one")
    assert run.checkpoints == tmp_path / "large_disk" and said[0] == f"a new run in {run.folder}"
    again, said = train("trainer.total_training_steps=5", name="one", resume=True)
    assert said[0] == f"{run.folder} goes on from step 4" and steps(again) == [1, 2, 3, 4, 5]
    other, said = train(place, "trainer.total_training_steps=6", name="other")
    assert said[0] == f"a new run in {other.folder}, from {tmp_path}/large_disk/global_step_5" and steps(other) == [6]


def test_an_interrupted_run_says_how_to_go_on(train: Train) -> None:
    def interrupt(text: str) -> None:
        if text.startswith("step 2"):
            raise KeyboardInterrupt

    with pytest.raises(RunEnded) as ended:
        train(name="mine", report=interrupt)
    assert ended.value.exit_code == 130
    assert str(ended.value).startswith(
        "interrupted; `verl-hier train himac_alfworld --name mine --resume` goes on from"
    )


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("trainer.save_freq=4", r"no checkpoint was written yet \(trainer.save_freq=4\), so it has to start anew"),
        ("trainer.save_freq=-1", "it wrote no checkpoints; add trainer.save_freq=5"),
    ],
)
def test_a_crash_without_a_checkpoint(train: Train, monkeypatch: pytest.MonkeyPatch, override: str, words: str) -> None:
    monkeypatch.setenv("FAIL_AT", "1")
    with pytest.raises(RunEnded, match=words):
        train(override)


def test_verbose_passes_everything_through(train: Train, capfd: pytest.CaptureFixture[str]) -> None:
    plan = plan_run("himac_alfworld", ["trainer.total_training_steps=2"], name="loud")
    said: list[str] = []
    start(plan, said.append, verbose=True)
    assert capfd.readouterr().out == "verl has started\n" and not any(text.startswith("step") for text in said)


def test_a_cluster_is_told_where_its_loggers_write(train: Train) -> None:
    plan = plan_run("himac_alfworld", ["size=cluster"], name="one")
    variables = plan.config.ray_kwargs.ray_init.runtime_env.env_vars
    assert variables.VERL_FILE_LOGGER_PATH == str((RUNS / "one/metrics.jsonl").resolve())
    assert variables.TENSORBOARD_DIR == str((RUNS / "one/tensorboard").resolve())


def test_quoted_values_are_read_back_by_hydra() -> None:
    from hydra.core.override_parser.overrides_parser import OverridesParser

    for text in ("a b", "it's, (odd) {here}: \\ and = too", "plain"):
        assert OverridesParser.create().parse_override(f"key={hydra_value(text)}").value() == text


STEP = {
    "timing_s/step": 30.0,
    "hier/tokens/generated": 8120.0,
    "hier/episodes/success": 0.41,
    "hier/episodes/return_mean": 0.346,
    "hier/credit/planner/mean": 0.0,
    "hier/schedule/phase/A": 1.0,
    "hier/schedule/phase/B": 0.0,
}


def test_a_line_for_a_step() -> None:
    progress = Progress(total=32)
    assert progress.line({"step": 0, "val-core/x/acc/mean@2": 0.25}) == "before step 1  validation 0.25"
    line = progress.line({"step": 8, **STEP})
    words = ["step  8/32", "A: planner", "success 0.41", "return 0.35", "8.1k tokens", "30.0 s", "12 min left"]
    assert [part.strip() for part in line.split("  ") if part.strip()] == [*words[0].split("  "), *words[1:]]
    line = progress.line({"step": 32, **STEP, "val-core/x/acc/mean@2": 0.5, "val-core/y/acc/mean@2": 1.0})
    assert "left" not in line and line.endswith("validation 0.75")
    assert Progress(None).line({"step": 8, "timing_s/step": 1.0}).startswith("step 8  ")


def test_the_end_says_what_was_reached() -> None:
    first, last = {"step": 0, "val-core/x/acc/mean@2": 0.25}, {"step": 8, **STEP, "val-core/x/acc/mean@2": 0.5}
    assert summary([first, {"step": 7, **STEP}, last]) == [
        "8 steps in 60 s, its start not counted; the last one: success 0.41, return 0.35",
        "validation: 0.25 after step 0, 0.50 after step 8",
    ]
    assert summary([{"step": 1, "timing_s/step": 1.0}]) == ["1 steps in 1 s, its start not counted"]


@pytest.mark.parametrize("line", ["trainer.logger", "trainer.resume_mode", "trainer.default_local_dir"])
def test_a_value_that_is_left_open_is_named(line: str) -> None:
    with pytest.raises(RecipeError, match=rf"{line}: the recipe leaves this value to you"):
        plan_run("grpo_alfworld", [f"{line}=???"])


def test_a_long_text_in_place_of_the_command_is_refused_at_once(tmp_path: Path) -> None:
    run = Run(tmp_path)
    for text in ("x" * 10**6, "[" * 10**6, "", "verl-hier 'train"):
        run.command_file.write_text(text)
        with pytest.raises(HierError, match="does not end with a `verl-hier train` command"):
            run.command
