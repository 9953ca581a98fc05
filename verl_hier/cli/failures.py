"""`failures`: errors planted in attempts that were won, and who finds them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from verl_hier.cli.check import Overrides
from verl_hier.cli.options import Seed, new_file, whole
from verl_hier.cli.output import line, table


def failures(
    recipe: Annotated[
        str, typer.Argument(metavar="RECIPE", help="A recipe, as for `check`, whose world has an expert.")
    ],
    overrides: Overrides = None,
    cases: Annotated[int, whole("How many cases.")] = 40,
    others: Annotated[int, whole("Attempts of the expert with mistakes beside each lost one.")] = 8,
    seed: Seed = 0,
    out: Annotated[Path | None, new_file("Write the cases here, in the form of Who&When.", ".jsonl")] = None,
) -> None:
    """Plant errors in won attempts, and measure who finds them.

    The rules are those that `verl-hier credit` has for --blame, beside the last turn and a turn at random.
    """
    import asyncio

    from verl_hier.graph.atomic_write import write_records
    from verl_hier.ops.failures import Recorded, measure, plant
    from verl_hier.recipe.composed import ComposedRecipe

    player = Recorded(ComposedRecipe.named(recipe, list(overrides or ())))

    async def measured() -> tuple[dict[str, dict[str, float]], list[dict[str, object]]]:
        try:
            made = [case async for case in plant(player, cases, seed, others)]
            return await measure(player, made), [case.fields() for case in made]
        finally:
            await player.close()

    found, written = asyncio.run(measured())
    rows = [(rule, *(f"{shares[name]:.3f}" for name in ("agent", "step", "named"))) for rule, shares in found.items()]
    table(rows, head=("rule", "agent", "step", "named"))
    if out is not None:
        write_records(out, written)
        line(f"{len(written)} cases: {out}")
