"""`replay`: stored rollouts made again, decision by decision."""

from __future__ import annotations

from verl_hier.cli.check import Overrides, Reference
from verl_hier.cli.options import Graphs
from verl_hier.cli.output import line, table
from verl_hier.errors import RolloutError

SHOWN = 3


def replay(
    recipe: Reference,
    source: Graphs,
    overrides: Overrides = None,
) -> None:
    """Make stored rollouts again and say where they differ."""
    import asyncio

    from verl_hier.compat.runner import runner_of
    from verl_hier.ops.replay import replay as replay_all
    from verl_hier.recipe.compose import compose

    replays = asyncio.run(replay_all(source, runner_of(compose(recipe, overrides or ()))))
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
