"""The runs of a panel: cold starts, trials of learning rates, then the runs that count."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verl_hier.errors import HierError, RecipeError, RunEnded
from verl_hier.host.side_by_side import side_by_side
from verl_hier.ops.bench.cells import TRIAL_SEED, Cells, Curve, Key, at_budget, fingerprint, overrides_of
from verl_hier.ops.bench.panel import Panel, Task
from verl_hier.recipe.overrides import hydra_value

Report = Callable[[str], None]
COSTS = {
    "tokens": "hier/tokens/generated",
    "calls": "hier/counts/environment_calls",
    "seconds": "timing_s/step",
}
"""What a run spends, and the metric that counts it; measurements are left out of all of them."""


class _Reached(Exception):
    """The run has come to its budget."""


@dataclass(frozen=True)
class Run:
    """One run, as a process of its own is told.

    Attributes:
        rate: its learning rate; 0 for that of its recipe.
        model: that of its cold start; None where the recipe names one.
        work: folder of logs.
        further: overrides of all runs.
    """

    task: Task
    key: Key
    rate: float
    model: Path | None
    work: Path
    further: tuple[str, ...]

    def composed(self) -> tuple[str, list[str]]:
        """Its recipe, and all of its overrides."""
        recipe, overrides = overrides_of(self.task, self.key.method, self.further)
        overrides += [f"hier.seed={self.key.seed}", f"data.seed={self.key.seed}"]
        overrides += [f"actor_rollout_ref.actor.optim.lr={self.rate}"] if self.rate else []
        overrides += [f"actor_rollout_ref.model.path={hydra_value(str(self.model.resolve()))}"] if self.model else []
        return recipe, overrides


@dataclass(frozen=True)
class Bench:
    """What is to be measured.

    Attributes:
        panel: whose tasks and methods.
        cells: file of what was measured before, and of what will be.
        work: folder of models and logs.
        places: the tasks and methods that are chosen, in order.
        seeds: 0 to this number.
        jobs: runs at a time.
        further: overrides of all runs, such as the folder of a model.
    """

    panel: Panel
    cells: Cells
    work: Path
    places: tuple[tuple[str, str], ...]
    seeds: int = 3
    jobs: int = 1
    further: tuple[str, ...] = ()

    def keys(self) -> list[Key]:
        """The cells that count, one seed after the other, so that methods stay comparable when time ends."""
        return [Key(*place, seed) for seed in range(self.seeds) for place in self.places]

    def trials(self) -> list[Key]:
        """Those in which methods try learning rates."""
        return [
            Key(task, method, TRIAL_SEED, rate) for task, method in self.places for rate in self.panel.tasks[task].rates
        ]

    def prints(self) -> dict[tuple[str, str], str]:
        """Fingerprints of the chosen tasks and methods."""
        return {place: fingerprint(self.panel, *place, self.further) for place in self.places}


def measure(bench: Bench, prints: Mapping[tuple[str, str], str], hours: float, report: Report) -> None:
    """Measure what the file does not hold as it would be measured now, and begin nothing after so many hours.

    Args:
        bench: what is to be measured.
        prints: its fingerprints.
        hours: from now on.
        report: called with a sentence for each run that has ended.

    Raises:
        HierError: that of the first run that failed, when the others have ended.
    """
    end = time.monotonic() + 3600 * hours
    for keys in (bench.trials(), bench.keys()):
        missing = [key for key in keys if not bench.cells.curve(key, prints[key.task, key.method])]
        if missing:
            _play(bench, missing, prints, end, report)
        if time.monotonic() >= end:
            return


def rate_of(bench: Bench, key: Key, print_of: str) -> float:
    """The learning rate of a run: the one that it tries, or that did best in the trials; 0 for its recipe's."""
    task = bench.panel.tasks[key.task]
    if key.trial or not task.rates:
        return key.trial
    trials = [Key(key.task, key.method, TRIAL_SEED, rate) for rate in task.rates]
    reached = {t.trial: at_budget(bench.cells.curve(t, print_of), t.tokens(task)) for t in trials}
    return max(reached, key=reached.__getitem__)


def require_sound(bench: Bench) -> None:
    """Refuse before the first cold start what a run would refuse after it.

    Raises:
        RecipeError: for a recipe that is wrong, or that this machine cannot run.
    """
    from verl_hier.recipe.check import check_ready
    from verl_hier.recipe.compose import compose

    for name, method in bench.places:
        recipe, overrides = overrides_of(bench.panel.tasks[name], method, bench.further)
        report, lacking = check_ready(compose(recipe, overrides))
        for missing in lacking:
            if missing.commands != report.first or bench.panel.tasks[name].cold_start is None:
                raise RecipeError(f"tasks.{name}.methods.{method}: {missing.why}")


def _play(bench: Bench, keys: Sequence[Key], prints: Mapping[tuple[str, str], str], end: float, report: Report) -> None:
    """Cold starts, then runs, `jobs` at a time. A run that fails stops no other."""
    tasks = bench.panel.tasks
    starts = list(dict.fromkeys((name, key.seed) for key in keys if (name := tasks[key.task].cold_start)))
    # In processes of their own: they seed torch, import transformers and compose with Hydra, which threads would share.
    with side_by_side(bench.jobs) as pool:
        made = {each: pool.submit(_start, end, bench.panel, *each, bench.work) for each in starts}
        models = {each: future.result() for each, future in made.items()}
        running = {}
        for key in keys:
            name = tasks[key.task].cold_start
            model = models[name, key.seed] if name else None
            if name is None or model is not None:
                rate = rate_of(bench, key, prints[key.task, key.method])
                run = Run(tasks[key.task], key, rate, model, bench.work, bench.further)
                running[pool.submit(_train, end, run)] = (key, rate)
        failed: list[BaseException] = []
        for future in as_completed(running):
            key, rate = running[future]
            if error := future.exception():
                failed.append(error)
                report(f"{key.task}, {key.method}, seed {key.seed}: {error}")
            elif curve := future.result():
                bench.cells.keep(key, prints[key.task, key.method], curve, rate)
                report(
                    f"{key.task}, {key.method}, seed {key.seed}: {curve[0]['success']:.1%} → {curve[-1]['success']:.1%}"
                )
    if failed:
        raise failed[0]


def _start(end: float, panel: Panel, name: str, seed: int, work: Path) -> Path | None:
    """The model of a cold start; None where it is too late for one."""
    from verl_hier.coldstart.build import build
    from verl_hier.recipe.compose import compose

    if time.monotonic() >= end:
        return None
    start, path = panel.cold_starts[name], work / "cold_starts" / f"{name}_{seed}" / "model"
    own = [f"actor_rollout_ref.model.path={hydra_value(str(path))}", f"hier.seed={seed}"]
    return build(
        *(compose(recipe, ["hier.coldstart.batch_size=24", *start.overrides, *own]) for recipe in start.recipes)
    )


def _train(end: float, run: Run) -> Curve:
    """The curve of a run that is ended by its budget; empty where it is too late for one.

    Raises:
        HierError: when the run fails before that.
    """
    from verl_hier.ops.training import plan_run, start

    if time.monotonic() >= end:
        return []
    recipe, overrides = run.composed()
    folder = run.key.folder(run.work)
    if folder.exists():
        shutil.rmtree(folder)
    records: list[Mapping[str, Any]] = []

    def step(record: Mapping[str, Any]) -> None:
        records.append(record)
        curve = curve_of(records)
        if curve and curve[-1]["tokens"] >= run.key.tokens(run.task):
            raise _Reached

    try:
        start(plan_run(recipe, overrides, folder=folder), lambda text: None, step=step)
    except _Reached:
        return curve_of(records)
    except RunEnded as error:
        raise HierError(str(error)) from None  # what a process can hand to another
    raise HierError(f"{folder} ended before it came to its tokens: 1000 steps were not enough.")


def curve_of(records: Sequence[Mapping[str, Any]]) -> Curve:
    """Held-out success over generated tokens, calls of the world and seconds of the steps, from a run's metrics."""
    from verl_hier.ops.progress import validation_of

    spent, curve = dict.fromkeys(COSTS, 0.0), []
    for record in records:
        for cost, metric in COSTS.items():
            spent[cost] += record.get(metric, 0.0)
        held_out = validation_of(record)
        if held_out is not None:
            curve.append({"step": record["step"], **spent, "success": held_out})
    return curve
