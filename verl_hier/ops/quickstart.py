"""The quickstart: cold start, HiMAC on stock verl, success before and after on held-out tasks, a picture."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from verl_hier.coldstart.build import build
from verl_hier.coldstart.sft import Progress, no_progress
from verl_hier.compat.validation_success import JUDGED
from verl_hier.errors import RolloutError
from verl_hier.host.manager import DEFAULT_ENABLED, PluginHost
from verl_hier.host.specs import EnvironmentSpec
from verl_hier.ops.progress import validation_of
from verl_hier.ops.runs import Run
from verl_hier.ops.training import plan_run, start
from verl_hier.recipe.checks.world import missing_module
from verl_hier.recipe.compose import compose
from verl_hier.recipe.overrides import hydra_value

EXPECTED = (20, 40)
"""Points that a quickstart on households with its defaults gains, as docs/quickstart.md measured it."""
Report = Callable[[str], None]


@dataclass(frozen=True)
class World:
    """What is learnt.

    Attributes:
        recipe: its name.
        tasks: what the tasks are, in words.
        sft_steps: supervised steps after which something is known and much is left to learn.
        overrides: further lines of the recipe.
    """

    recipe: str
    tasks: str
    sft_steps: int
    overrides: tuple[str, ...] = ()


HOUSEHOLDS = World("quickstart", "two-goal households", 1300)
_SAMPLED = "actor_rollout_ref.rollout.val_kwargs="
# What the recipe `quickstart` says of validation and of the store.
SHOP = World(
    "himac_shop",
    "errands in a shop",
    200,
    (_SAMPLED + "{temperature: 1.0, do_sample: true, n: 2}", "trainer.val_before_train=true", "hier.store.path=graphs"),
)


def world_here() -> World:
    """The households of ALFWorld, or the shop where ALFWorld is not installed: its planner needs a C++ compiler."""
    spec = PluginHost.load(DEFAULT_ENABLED).specs("environment")["alfworld"]
    assert isinstance(spec, EnvironmentSpec)
    return SHOP if missing_module(spec) else HOUSEHOLDS


@dataclass(frozen=True)
class Quickstart:
    """How much of it, and of what.

    Attributes:
        out: folder of everything it makes.
        seed: seed of weights, demonstrations, tasks and rollout.
        steps: reinforcement learning steps; odd ones train the planner, even ones the executor.
        sft_steps: supervised steps of the cold start; None for those of the world.
        demonstrations: expert episodes; of households half have one goal and half two.
        world: what is learnt.
    """

    out: Path = Path("runs/quickstart")
    seed: int = 0
    steps: int = 32
    sft_steps: int | None = None
    demonstrations: int = 480
    world: World = HOUSEHOLDS


def run(plan: Quickstart, report: Report, progress: Progress = no_progress) -> dict[str, Any]:
    """Do it all and return the summary, which also lies in `plan.out / "summary.json"`.

    Raises:
        RunEnded: when the training run fails.
    """
    started = time.time()
    plan.out.mkdir(parents=True, exist_ok=True)
    if plan.world is SHOP:
        report("ALFWorld is not installed, so the tasks are errands in a shop; `pip install 'verl-hier[alfworld]'`,")
        report("which builds a planner and needs cmake and a C++ compiler, brings the households.")
    report("1/3 cold start")
    recipe = compose(plan.world.recipe, start_overrides(plan))
    model = build(recipe, report=lambda text: report(f"    {text}"), progress=progress)
    report(f"2/3 HiMAC, {plan.steps} steps of unmodified verl {version('verl')}")
    records = train(plan, model, lambda text: report(f"    {text}")).metrics()
    report("3/3 summary")
    summary = summarise(records, plan, time.time() - started)
    (plan.out / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
    plot(records, plan.out / "learning_curve.png", f"HiMAC on {plan.world.tasks}")
    return summary


def start_overrides(plan: Quickstart) -> list[str]:
    """What the plan changes in the cold start of the recipe."""
    return [
        f"actor_rollout_ref.model.path={hydra_value(plan.out.resolve() / 'coldstart' / 'model')}",
        f"hier.seed={plan.seed}",
        f"hier.coldstart.episodes={plan.demonstrations}",
        f"hier.coldstart.steps={plan.sft_steps or plan.world.sft_steps}",
        *plan.world.overrides,
    ]


def train(plan: Quickstart, model: Path, report: Report) -> Run:
    """Run the recipe from the model, with a line a step."""
    overrides = [
        f"actor_rollout_ref.model.path={hydra_value(model.resolve())}",
        f"hier.seed={plan.seed}",
        f"data.seed={plan.seed}",
        f"trainer.total_training_steps={plan.steps}",
        f"trainer.test_freq={plan.steps}",
        # An earlier run in the folder may have had other options.
        "trainer.resume_mode=disable",
        *plan.world.overrides,
    ]
    return start(plan_run(plan.world.recipe, overrides, folder=plan.out / "training"), report)


def summarise(records: list[dict[str, Any]], plan: Quickstart, wall_s: float) -> dict[str, Any]:
    """What the run was and did.

    Raises:
        RolloutError: when held-out success was not measured before and after.
    """
    held_out = [value for value in map(validation_of, records) if value is not None]
    judged = [int(record[JUDGED]) for record in records if JUDGED in record]
    trained = [record["hier/episodes/success"] for record in records if "hier/episodes/success" in record]
    if len(held_out) < 2:
        raise RolloutError(
            f"held-out success was measured {len(held_out)} times, not before and after; see training/train.log."
        )

    def total(name: str) -> int:
        return int(sum(record.get(name, 0) for record in records))

    return {
        "success_before": held_out[0],
        "success_after": held_out[-1],
        "held_out_episodes": judged[-1] if judged else None,
        "success_in_training": trained[-1] if trained else None,
        "recipe": plan.world.recipe,
        "steps": plan.steps,
        "generated_tokens": total("hier/tokens/generated"),
        "episodes": total("hier/episodes/count"),
        "wall_s": round(wall_s, 1),
        "verl_version": version("verl"),
        "seed": plan.seed,
        "guards": {
            "alarms": total("hier/guards/alarms"),
            "failed_episodes": total("hier/episodes/failed"),
            "short_groups": total("hier/groups/short"),
            "padding_rows": total("hier/rows/padding"),
        },
    }


def conclusion(summary: Mapping[str, Any], plan: Quickstart) -> Iterator[str]:
    """What was gained, what was to be expected, and why the success of training is another one."""
    before, after, episodes = summary["success_before"], summary["success_after"], summary["held_out_episodes"]
    says = f"held-out success {before:.1%} → {after:.1%}, {100 * (after - before):+.1f} points"
    if episodes:
        chance = 1.96 * math.sqrt(sum(share * (1 - share) for share in (before, after)) / episodes)
        says += f" (± {100 * chance:.0f} by chance, of {episodes} episodes each; 95 %)"
    if plan == Quickstart(plan.out, plan.seed):
        says += f"; {EXPECTED[0]} to {EXPECTED[1]} are expected, and seed 0 gains the least (docs/quickstart.md)"
    yield f"{says}."
    if summary["success_in_training"] is not None:
        yield (
            f"The success of the last step, {summary['success_in_training']:.1%}, is that of other episodes: tries of "
            "many plans that are played greedily, and executions of the best of them. A held-out task is played with "
            "one plan, at temperature 1."
        )


def plot(records: list[dict[str, Any]], path: Path, title: str) -> None:
    """Success in training and on held-out tasks over generated tokens, as a PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    tokens, trained, held_out = 0.0, [], []
    for record in records:
        tokens += record.get("hier/tokens/generated", 0.0)
        if "hier/episodes/success" in record:
            trained.append((tokens / 1000, record["hier/episodes/success"]))
        value = validation_of(record)
        if value is not None:
            held_out.append((tokens / 1000, value))
    figure, axes = pyplot.subplots(figsize=(6.4, 3.6), layout="constrained")
    axes.plot(*zip(*trained, strict=True), color="0.6", marker=".", label="training tasks, all episodes of a step")
    # Measured before and after, and nowhere in between.
    axes.plot(*zip(*held_out, strict=True), "o", color="tab:blue", label="held-out tasks")
    axes.set(xlabel="generated tokens (thousands)", ylabel="success", ylim=(0, 1), title=title)
    figure.legend(loc="outside lower center", ncols=2, frameon=False)
    figure.savefig(path, dpi=150)
    pyplot.close(figure)
