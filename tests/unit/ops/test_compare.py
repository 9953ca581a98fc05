"""Runs side by side: arms, what they reached at equal budgets, tables, picture and page."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.fixtures.written_runs import training, write_run
from verl_hier.cli.main import app
from verl_hier.errors import HierError
from verl_hier.ops.compare import HELD_OUT, compare
from verl_hier.ops.compare_page import page, rows
from verl_hier.ops.runs import Run

GRPO = "hier.estimator={name: grpo}"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """Two seeds of one recipe, whose steps have 100 tokens, and another recipe whose steps have 300."""
    home = tmp_path_factory.mktemp("runs")
    seeds = {
        f"seed_{seed}": write_run(
            home / f"seed_{seed}",
            training([0.1] * 6, validated={0: 0.1 * seed, 3: 0.4, 6: 0.6 + 0.2 * seed}),
            overrides=[f"hier.seed={seed}", f"data.seed={seed}", f"trainer.experiment_name=seed_{seed}"],
        )
        for seed in (0, 1)
    }
    other = write_run(home / "other", training([0.2] * 3, 300, {0: 0.0, 3: 0.9}), overrides=[GRPO])
    return {**seeds, "other": other}


def test_seeds_are_one_arm_and_arms_are_named_after_what_differs(runs: dict[str, Run]) -> None:
    found = compare(runs.values())
    assert found.measure == HELD_OUT
    assert [len(arm.curves) for arm in found.arms] == [2, 1]
    assert [arm.name for arm in found.arms] == ["estimator.name=himac", "estimator.name=grpo"]
    keys = dict(found.differences())
    assert keys["hier.estimator.name"] == ["himac", "grpo"]
    assert not any("seed" in key or key.startswith("trainer.") for key in keys)


def test_what_is_reached_is_read_off_at_equal_budgets(runs: dict[str, Run]) -> None:
    found = compare(runs.values())
    # 6 steps of 100 tokens against 3 of 300; 3 of 8 episodes against 6; 30 s and one validation against 60 s and two.
    assert found.amounts == {"tokens": 600, "episodes": 24, "seconds": 35}
    seeds, other = found.arms
    assert seeds.at("tokens", 600) == pytest.approx([0.6, 0.8])
    assert other.at("tokens", 600) == pytest.approx([0.6]), "two thirds of the way from 0 to 0.9"
    assert seeds.at("episodes", 24) == pytest.approx([0.4, 0.4])
    assert other.at("seconds", 35) == pytest.approx([0.9])
    assert ("600 tokens", seeds.name, "2", "0.05 (0 to 0.1)", "0.7 (0.6 to 0.8)") in list(rows(found))


def test_without_held_out_tasks_training_is_averaged_over_the_last_third(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", training([0.0, 0.0, 0.0, 0.0, 0.3, 0.6, 0.9]))
    found = compare([run])
    assert found.measure == "success in training"
    # The last step begins behind 600 tokens; the last third is from 400 to 600.
    assert found.arms[0].at("tokens", found.amounts["tokens"]) == pytest.approx([0.6])


def test_any_metric_and_what_is_no_number(tmp_path: Path) -> None:
    steps = [{**step, "actor/grad_norm": norm} for step, norm in zip(training([0] * 3), (1.0, "x", 3.0), strict=True)]
    run = write_run(tmp_path / "run", steps)
    found = compare([run], "actor/grad_norm")
    assert found.arms[0].curves[0].values.tolist() == [1.0, 3.0]
    with pytest.raises(HierError, match=r"no metric 'actor/grad_nor' \(did you mean 'actor/grad_norm'\?\)"):
        compare([run], "actor/grad_nor")


def test_a_run_without_a_step_is_named(tmp_path: Path) -> None:
    with pytest.raises(HierError, match=r"young has no metrics of a finished step yet"):
        compare([write_run(tmp_path / "young", [])])


def test_the_command_writes_a_picture_and_a_page_of_its_own(runs: dict[str, Run], tmp_path: Path) -> None:
    folders = [str(run.folder) for run in runs.values()]
    files = ["--png", str(tmp_path / "new" / "curves.png"), "--html", str(tmp_path / "runs.html")]
    done = CliRunner().invoke(app, ["compare", *folders, *files])
    assert done.exit_code == 0, done.output
    assert "held-out success" in done.output and "hier.estimator.name" in done.output
    assert (tmp_path / "new" / "curves.png").read_bytes().startswith(b"\x89PNG")
    text = (tmp_path / "runs.html").read_text()
    assert text.count("<svg") == 1 and "<script" not in text and "600 tokens" in text
    assert all(f'"{scheme}' not in text.partition("<svg")[0] for scheme in ("http", "//"))


def test_words_of_a_recipe_are_text(tmp_path: Path) -> None:
    overrides = ["trainer.total_training_steps=3", "hier.recipe.name='<b>$x'"]
    text = page(compare([write_run(tmp_path / "run", training([0.5] * 3), overrides=overrides)]))
    assert "<b>" not in text and "&lt;b&gt;$x" in text
