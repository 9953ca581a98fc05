"""Panels and their cells: what a panel may say, which cells count, and what a page makes of them."""

from __future__ import annotations

import itertools
import json
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from verl_hier.cli.bench import bench
from verl_hier.errors import FileError, HierError, RecipeError
from verl_hier.ops.bench import cells as cells_of_panels
from verl_hier.ops.bench.cells import Cells, Key, at_budget, fingerprint, overrides_of
from verl_hier.ops.bench.page import CELLS, write_page
from verl_hier.ops.bench.panel import Panel
from verl_hier.ops.bench.running import Bench, Run, curve_of, rate_of
from verl_hier.ops.bench.tables import difference, grouped, missing, other_costs, results
from verl_hier.recipe.check import check_recipe
from verl_hier.recipe.compose import compose

PANEL: dict[str, Any] = {
    "summary": "Sums.",
    "cold_starts": {"sums": {"recipes": ["grpo_math"], "overrides": ["hier.coldstart.steps=3"]}},
    "tasks": {
        "sums": {
            "title": "sums",
            "cold_start": "sums",
            "tokens": 100,
            "methods": {"rloo": ["grpo_math", "hier.estimator.name=rloo"], "grpo": "grpo math"},
        }
    },
    "groups": {"all": ["sums"]},
}


def written(folder: Path, **changes: Any) -> Path:
    """A panel whose task differs in these lines."""
    content = json.loads(json.dumps(PANEL))
    content["tasks"]["sums"] |= changes
    file = folder / "mine.yaml"
    file.write_text(yaml.safe_dump(content, sort_keys=False))
    return file


def curve(*points: tuple[float, float]) -> list[dict[str, Any]]:
    return [{"step": n, "tokens": t, "calls": t / 2, "seconds": t / 4, "success": s} for n, (t, s) in enumerate(points)]


@pytest.mark.slow
def test_every_run_of_the_shipped_panels_is_a_recipe_that_passes() -> None:
    panel = Panel.find("learning")
    models = ["actor_rollout_ref.model.path=/nowhere"]
    for name, task in panel.tasks.items():
        for method in task.methods:
            recipe, overrides = overrides_of(task, method)
            with pytest.raises(RecipeError, match="there is no model at '/nowhere'"):
                check_recipe(compose(recipe, [*overrides, *models]))
            assert task.baseline in task.methods, name


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"tokens": 0}, "mine.yaml.tasks.sums.tokens"),
        ({"token": 10}, "no option 'token' (did you mean 'tokens'?)"),
        ({"cold_start": "sum"}, "tasks.sums.cold_start: 'sum' is none of `cold_starts`"),
        ({"baseline": "ppo"}, "tasks.sums.baseline: 'ppo' is none of its methods"),
        ({"methods": {"grpo": 3}}, "tasks.sums.methods.grpo"),
        ({"rates": [0.0]}, "tasks.sums.rates"),
    ],
)
def test_a_wrong_panel_is_refused_by_its_line(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(RecipeError) as error:
        Panel.find(str(written(tmp_path, **changes)))
    assert words in str(error.value)


def test_a_panel_and_its_tasks_are_found_by_name(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"no panel 'lerning' \(did you mean 'learning'\?\)"):
        Panel.find("lerning")
    panel = Panel.find(str(written(tmp_path)))
    assert panel.name == "mine" and panel.chosen([]) == panel.chosen(["all", "sums"]) == ["sums"]
    with pytest.raises(RecipeError, match=r"no task 'sum' \(did you mean 'sums'\?\)"):
        panel.chosen(["sum"])
    assert panel.tasks["sums"].recipe("grpo") == ("grpo_math", ())
    assert panel.tasks["sums"].recipe("rloo") == ("grpo_math", ("hier.estimator.name=rloo",))


def test_a_fingerprint_is_of_all_that_decides_a_figure_and_of_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    panel = Panel.find(str(written(tmp_path)))
    usual = fingerprint(panel, "sums", "grpo")
    assert usual == fingerprint(panel, "sums", "grpo", ["hier.seed=5", "data.seed=7", "trainer.experiment_name=other"])
    assert usual == fingerprint(replace(panel, name="other", summary=""), "sums", "grpo")
    task = panel.tasks["sums"]
    starts = {"sums": replace(panel.cold_starts["sums"], overrides=("hier.coldstart.steps=4",))}
    others = [
        fingerprint(panel, "sums", "rloo"),
        fingerprint(panel, "sums", "grpo", ["hier.worker.prompt='{instruction} = '"]),
        *(
            fingerprint(replace(panel, tasks={"sums": replace(task, **change)}), "sums", "grpo")
            for change in ({"tokens": 101}, {"held_out": 3}, {"test_every": 2}, {"rates": (1e-4,)})
        ),
        fingerprint(replace(panel, cold_starts=starts), "sums", "grpo"),
    ]
    monkeypatch.setattr(cells_of_panels, "__version__", "0.0")
    others.append(fingerprint(panel, "sums", "grpo"))
    assert len({usual, *others}) == len(others) + 1


def test_a_cell_counts_where_it_was_measured_as_it_would_be_now(tmp_path: Path) -> None:
    key, other = Key("sums", "grpo", 0), Key("sums", "grpo", 0, trial=1e-4)
    cells = Cells(tmp_path / CELLS)
    cells.keep(key, "now", curve((0, 0.5), (100, 0.6)), 0.0)
    cells.keep(key, "before", curve((0, 0.1)), 0.0)
    cells.keep(key, "now", curve((0, 0.5), (100, 0.7)), 0.0)
    read = Cells(tmp_path / CELLS)
    assert read.all == cells.all and len(read.all) == 3
    assert read.curve(key, "now")[-1]["success"] == 0.7 and read.curve(key, "before")[-1]["success"] == 0.1
    assert read.curve(key, "later") == read.curve(other, "now") == read.curve(replace(key, seed=1), "now") == []
    sound = read.all[0]
    point = sound["curve"][0]
    for change in (
        *({name: 3} for name in ("task", "method", "fingerprint", "curve")),
        *({name: "x"} for name in ("seed", "trial", "rate")),
        *({"curve": points} for points in ([], [3], [{}], [point | {"success": "x"}], [point | {"calls": None}])),
    ):
        (tmp_path / CELLS).write_text(json.dumps(sound) + "\n" + json.dumps(sound | change) + "\n")
        with pytest.raises(FileError, match=r"cells\.jsonl, line 2 is no cell"):
            Cells(tmp_path / CELLS)


def test_the_rate_of_a_run_is_the_one_that_did_best_in_its_trials(tmp_path: Path) -> None:
    panel = Panel.find(str(written(tmp_path, rates=[1e-4, 3e-4])))
    cells = Cells(tmp_path / CELLS)
    bench_of = Bench(panel, cells, tmp_path, (("sums", "grpo"),))
    for trial, (late, early) in zip(bench_of.trials(), ((0.9, 0.3), (0.4, 0.4)), strict=True):
        assert trial.tokens(panel.tasks["sums"]) == pytest.approx(100 / 3)
        cells.keep(trial, "now", curve((0, 0.2), (100 / 3, early), (100, late)), trial.trial)
    assert rate_of(bench_of, Key("sums", "grpo", 0), "now") == 3e-4
    recipe, overrides = Run(panel.tasks["sums"], Key("sums", "rloo", 2), 3e-4, tmp_path, tmp_path, ("x=1",)).composed()
    assert recipe == "grpo_math" and overrides[0] == "hier.estimator.name=rloo"
    assert {"x=1", "hier.seed=2", "data.seed=2", "actor_rollout_ref.actor.optim.lr=0.0003"} <= {*overrides}


def test_a_curve_counts_what_was_spent_before_each_measurement() -> None:
    spent = {"hier/tokens/generated": 10.0, "hier/counts/environment_calls": 3.0, "timing_s/step": 2.0}
    records = [{"step": 0, "hier/validation/success": 0.25}, {"step": 1, **spent}]
    records.append({"step": 2, **spent, "hier/validation/success": 0.5})
    points = [(point["tokens"], point["calls"], point["seconds"], point["success"]) for point in curve_of(records)]
    assert points == [(0.0, 0.0, 0.0, 0.25), (20.0, 6.0, 4.0, 0.5)]
    assert at_budget(curve_of(records), 5) == pytest.approx(0.3125) and at_budget(curve_of(records), 99) == 0.5


def test_the_tables_are_of_differences_by_seed(tmp_path: Path) -> None:
    panel = Panel.find(str(written(tmp_path)))
    found = [
        {"task": "sums", "method": method, "seed": seed, "curve": curve((0, 0.2), (200, 0.2 + 2 * gain))}
        for method, gains in (("grpo", (0.1, 0.2, 0.15)), ("rloo", (0.2, 0.1, 0.35)))
        for seed, gain in enumerate(gains)
    ]
    groups = grouped(panel, found)
    _, _, rloo, grpo = results(panel, groups)
    more = [10.0, -10.0, 20.0]
    half = 4.303 * statistics.stdev(more) / 3**0.5
    assert f"| {statistics.mean(more):+.0f} ({statistics.mean(more) - half:+.0f} to " in rloo and "baseline" in grpo
    assert difference([1.0]) == "one seed"
    assert [*missing([("sums", "grpo"), ("sums", "rloo")], groups, 4)] == [
        "sums, grpo: 3 of 4 seeds", "sums, rloo: 3 of 4 seeds",
    ]  # fmt: skip
    assert [line.split(" | ")[2] for line in itertools.islice(other_costs(panel, groups), 2, None)] == ["100", "100"]
    for each in found:
        each["curve"] = curve((0, 0.2), (100, 0.25))
    assert "too short: grpo gained less than 10" in [*results(panel, grouped(panel, found))][2]


def test_the_page_has_what_counts_and_names_what_was_not_run(tmp_path: Path) -> None:
    panel = Panel.find(str(written(tmp_path)))
    cells = Cells(tmp_path / CELLS)
    plan = Bench(panel, cells, tmp_path / "work", (("sums", "rloo"), ("sums", "grpo")), seeds=2)
    for seed in range(2):
        cells.keep(Key("sums", "grpo", seed), plan.prints()["sums", "grpo"], curve((0, 0.2), (100, 0.4)), 0.0)
    cells.keep(Key("sums", "rloo", 0), "of another version", curve((0, 0.2), (100, 0.9)), 0.0)
    (said,) = write_page(plan, plan.prints(), tmp_path)
    page = (tmp_path / "results.md").read_text()
    assert said.startswith("2 cells count, 1 methods lack seeds") and "- sums, rloo: 0 of 2 seeds" in page
    assert "1 cells of other versions" in page and "| grpo | 2 | 20 (20 to 20) | 40 (40 to 40) |" in page
    assert (tmp_path / "curves.png").stat().st_size > 1000


def test_the_command_refuses_a_method_that_no_task_has(tmp_path: Path) -> None:
    with pytest.raises(HierError, match=r"--methods: none of the tasks has 'rlo' \(did you mean 'rloo'\?\)"):
        bench(str(written(tmp_path)), methods="rlo", out=tmp_path)
    bench(str(written(tmp_path)), methods="rloo", seeds=1, out=tmp_path, report=True)
    assert "- sums, rloo: 0 of 1 seeds" in (tmp_path / "results.md").read_text()


def test_the_folder_of_a_model_counts_by_what_it_holds(tmp_path: Path) -> None:
    panel = Panel.find(str(written(tmp_path, cold_start=None)))
    folders = [tmp_path / name for name in ("one", "two", "other")]
    for folder in folders:
        folder.mkdir()
        (folder / "config.json").write_text("{}")
        (folder / "model.safetensors").write_bytes(b"other" if folder.name == "other" else b"weights")
    prints = [fingerprint(panel, "sums", "grpo", [f"actor_rollout_ref.model.path={folder}"]) for folder in folders]
    assert prints[0] == prints[1] != prints[2]


def test_held_out_tasks_are_sampled_at_the_temperature_of_training(tmp_path: Path) -> None:
    for temperature in (1.0, 0.6):
        panel = Panel.find(str(written(tmp_path, temperature=temperature)))
        recipe, overrides = overrides_of(panel.tasks["sums"], "grpo")
        rollout = compose(recipe, overrides).actor_rollout_ref.rollout
        assert rollout.temperature == rollout.val_kwargs.temperature == temperature
