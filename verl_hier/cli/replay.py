"""`replay`: stored rollouts made again, decision by decision."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from verl_hier.cli.check import Overrides
from verl_hier.cli.options import stored as there
from verl_hier.cli.output import line, table
from verl_hier.errors import RecipeError, RolloutError

SHOWN = 3


def replay(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="A recipe, as for `check`, or the folder of a run.")],
    source: Annotated[
        Path | None,
        typer.Argument(metavar="[INPUT]", callback=there, help="Store, step or graph files; needless for a run."),
    ] = None,
    overrides: Overrides = None,
) -> None:
    """Make stored rollouts again and say where they differ.

    A run is replayed by the recipe that it ran.
    """
    import asyncio

    from verl_hier.compat.runner import runner_of
    from verl_hier.ops.replay import replay as replay_all
    from verl_hier.ops.runs import Run
    from verl_hier.ops.stored import Stored
    from verl_hier.recipe.compose import compose

    if source is None:
        stored = Stored.at(recipe)
        if stored.run is None:
            raise RecipeError(f"{recipe} is not the folder of a run; name the rollouts after the recipe.")
        graphs, config = stored.graphs, Run.open(stored.run).recipe()
    else:
        graphs, config = Stored.at(source).graphs, compose(recipe, overrides or ())
    replays = asyncio.run(replay_all(graphs, runner_of(config)))
    rows = []
    for number, one in enumerate(replays):
        said = "; ".join(one.differences[:SHOWN]) + ("; …" if len(one.differences) > SHOWN else "")
        name = str(one.graph.task.get("index", number))
        rows.append((str(one.graph.step), name, str(len(one.graph.nodes)), said or "the same tree"))
    table(rows, head=("step", "task", "turns", "replay"))
    differing = sum(bool(one.differences) for one in replays)
    line()
    if differing:
        raise RolloutError(
            f"{differing} of {len(replays)} rollouts differ from their replay; give the overrides of the run, and see "
            "docs/rollout_graph.md for what makes a rollout repeatable."
        )
    line(f"{len(replays)} rollouts, all the same")
