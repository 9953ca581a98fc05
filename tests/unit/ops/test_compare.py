"""Runs side by side: arms, what they reached at equal budgets, tables, picture and page."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from tests.fixtures.written_runs import training, write_run
from verl_hier.cli.main import app
from verl_hier.errors import HierError
from verl_hier.ops.compare import HELD_OUT, Curve, Measured, compare
from verl_hier.ops.compare_page import page, rows, told
from verl_hier.ops.runs import Run
from verl_hier.ops.tasks_of_runs import alike

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


def values(found):
    return [None if each is None else each.value for each in found]


def test_what_is_reached_is_read_off_at_equal_budgets(runs: dict[str, Run]) -> None:
    found = compare(runs.values())
    # 6 steps of 100 tokens against 3 of 300; 3 of 8 episodes against 6; 30 s and one validation against 60 s and two.
    assert found.amounts == {"tokens": 600, "episodes": 24, "seconds": 35}
    seeds, other = found.arms
    assert values(seeds.at("tokens", 600)) == pytest.approx([0.6, 0.8])
    assert values(other.at("tokens", 600)) == [0.0], "measured at 0 and at 900, and at nothing between them"
    assert values(seeds.at("episodes", 24)) == pytest.approx([0.4, 0.4])
    assert values(other.at("seconds", 35)) == pytest.approx([0.9])
    of_seeds, of_other = list(rows(found))[:2]
    assert of_seeds == (
        "600 tokens",
        seeds.name,
        "2",
        "0.050 (0.000 to 0.100) at 0 tokens",
        "0.700 (0.600 to 0.800) at 600 tokens",
    )
    assert of_other[3:] == ("0.000 at 0 tokens", "0.000 at 0 tokens")


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_every_figure_was_measured_within_the_budget_that_it_is_given_for(data) -> None:
    """Of any curves at any amounts: a held-out figure is one of the measurements, a figure of training a mean of some,
    and where none was made by then there is none."""
    spent = np.cumsum(data.draw(st.lists(st.integers(0, 50), min_size=1, max_size=8))).astype(float)
    amount = float(data.draw(st.integers(0, 300)))
    held_out = data.draw(st.booleans())
    measured = np.array([data.draw(st.integers(-9, 9)) for _ in spent], float)
    found = Curve(Run(Path("run")), held_out, measured, {"tokens": spent}).at("tokens", amount)
    within = measured[spent <= amount]
    if found is None:
        assert not within.size
        return
    assert found.first <= found.last <= amount and {found.first, found.last} <= {*spent}
    used = measured[(spent >= found.first) & (spent <= found.last)]
    if held_out:
        assert found.value == within[-1] and found.first == found.last
    else:
        assert found.value == pytest.approx(used.mean()) or found.value == within[-1]


def test_a_run_without_a_measurement_within_the_budget_has_no_figure(tmp_path: Path) -> None:
    late = write_run(tmp_path / "late", training([0.1] * 4, 100, {2: 0.3, 4: 0.5}))
    early = write_run(tmp_path / "early", training([0.1] * 2, 50, {1: 0.2, 2: 0.4}), overrides=[GRPO])
    found = compare([late, early])
    assert [row[3:] for row in rows(found)][:2] == [
        ("0.300 at 200 tokens", "-"),
        ("0.200 at 50 tokens", "0.400 at 100 tokens"),
    ]
    assert told([None, Measured(0.5, 1, 1)], "tokens") == "0.500 of 1 of 2 runs at 1 tokens"


def test_the_picture_has_the_measurements_and_nothing_else(runs: dict[str, Run], monkeypatch) -> None:
    drawn: list[tuple[list[float], list[float]]] = []
    from matplotlib.axes import Axes

    plot = Axes.plot
    monkeypatch.setattr(Axes, "plot", lambda self, x, y, **more: (drawn.append(([*x], [*y])), plot(self, x, y, **more)))
    page(compare(runs.values()))
    assert drawn[:3] == [
        ([0, 300, 600], pytest.approx([0.0, 0.4, 0.6])),
        ([0, 300, 600], pytest.approx([0.1, 0.4, 0.8])),
        ([0, 900], [0.0, 0.9]),
    ]


UNLIKE = {
    "another environment": ("hier/environment=shop", "shop"),
    "another level": ("hier.environment.level=small", "hier.environment.level: tiny, small"),
    "another split": ("data.val_files=test", "data.val_files: val, test"),
}


@pytest.mark.parametrize(
    "override", ["hier.environment.invalid_penalty=0.5", GRPO, "hier.seed=3", "data.train_files=val"]
)
def test_runs_on_equal_held_out_tasks_are_compared(tmp_path: Path, override: str) -> None:
    made = [
        write_run(tmp_path / str(number), training([0.1] * 2, validated={0: 0.1, 2: 0.2}), overrides=more)
        for number, more in enumerate(([], [override]))
    ]
    assert len([curve for arm in compare(made).arms for curve in arm.curves]) == 2


@pytest.mark.parametrize("case", UNLIKE)
def test_runs_on_unlike_tasks_are_shown_apart(tmp_path: Path, case: str) -> None:
    override, said = UNLIKE[case]
    recipe, more = ("quickstart", [override]) if case != "another environment" else ("gigpo_shop", [])
    one = write_run(tmp_path / "one", training([0.1] * 2, validated={0: 0.1, 2: 0.27}))
    other = write_run(tmp_path / "other", training([0.1] * 2, validated={0: 0.1, 2: 0.66}), recipe, more)
    with pytest.raises(HierError, match="play different tasks") as refused:
        compare([one, other])
    assert said in str(refused.value)
    files = ["--html", str(tmp_path / "runs.html"), "--png", str(tmp_path / "runs.png")]
    done = CliRunner().invoke(app, ["compare", str(one.folder), str(other.folder), *files])
    assert done.exit_code == 0, done.output
    words = " ".join(done.output.split())
    assert f"play different tasks ({said}" in words or "play different tasks (alfworld, shop)" in words
    assert words.count("held-out success") == 2 and "in what the recipes differ" not in words
    assert "play different tasks" in (tmp_path / "runs.html").read_text()


def test_data_files_of_equal_content_are_the_same_tasks(tmp_path: Path) -> None:
    for name, content in (("a", "x"), ("b", "x"), ("c", "y")):
        (tmp_path / name).write_text(content)
    recipes = [{"hier.environment.name": "prompt", "data.val_files": str(tmp_path / name)} for name in "abc"]
    assert alike(recipes, held_out=True) == [[0, 1], [2]]
    assert alike(recipes, held_out=False) == [[0, 1, 2]]


def test_without_held_out_tasks_training_is_averaged_over_the_last_third(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", training([0.0, 0.0, 0.0, 0.0, 0.3, 0.6, 0.9]))
    found = compare([run])
    assert found.measure == "success in training"
    # The last step begins behind 600 tokens; the last third is from 400 to 600.
    (reached,) = found.arms[0].at("tokens", found.amounts["tokens"])
    assert reached is not None and reached.value == pytest.approx(0.6)
    assert (reached.first, reached.last) == (400, 600)


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
