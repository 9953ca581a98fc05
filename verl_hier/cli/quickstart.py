"""`quickstart`: watch a planner and an executor learn, in one command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from verl_hier.cli.options import new_folder, whole
from verl_hier.cli.output import StepBar, line, table


def quickstart(
    out: Annotated[Path, new_folder("Folder of everything it makes.")] = Path("runs/quickstart"),
    seed: Annotated[int, whole("Seed of weights, demonstrations, tasks and rollout.", least=0)] = 0,
    steps: Annotated[int, whole("Reinforcement learning steps.")] = 32,
    sft_steps: Annotated[
        int | None, whole("Supervised steps of the cold start; omitted: 1300 on households, 200 in the shop.")
    ] = None,
    demonstrations: Annotated[int, whole("Expert episodes of the cold start.", least=2)] = 480,
) -> None:
    """Train HiMAC from nothing, on this machine's CPU."""
    from verl_hier.ops.quickstart import Quickstart, conclusion, run, world_here

    plan = Quickstart(out, seed, steps, sft_steps, demonstrations, world_here())
    with StepBar("supervised training") as bar:
        summary = run(plan, line, bar)
    said = list(conclusion(summary, plan))
    guards = summary.pop("guards")
    rows = [(name.replace("_", " "), _shown(value)) for name, value in (summary | guards).items()]
    table(rows, head=("what", "value"))
    line(f"summary: {out / 'summary.json'}   learning curve: {out / 'learning_curve.png'}")
    training = out / "training"
    line(f"rollouts: {training / 'graphs'}   policy: {training / 'model'}")
    line(f"next: verl-hier eval {training}   or: verl-hier credit --compare himac,grpo {training / 'graphs'}")
    line(f"look at it: verl-hier view {out}")
    line()
    for sentence in said:
        line(sentence)


def _shown(value: object) -> str:
    return f"{value:.3f}" if isinstance(value, float) and value < 1 else str(value)
