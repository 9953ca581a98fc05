"""`train`."""

from __future__ import annotations

import shlex
from typing import Annotated

import typer

from verl_hier.cli.check import Overrides, Reference, show, spelled
from verl_hier.cli.coldstart import make
from verl_hier.cli.output import line, table


def train(
    recipe: Reference,
    overrides: Overrides = None,
    name: Annotated[
        str | None, typer.Option(help="Name of the run's folder in runs/RECIPE; omitted: the present time.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the run of that name, or with the newest run of the recipe.")
    ] = False,
    from_scratch: Annotated[
        bool, typer.Option("--from-scratch", help="First make the small model, as `verl-hier coldstart` does.")
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Print all that verl prints.")] = False,
) -> None:
    """Check a recipe, then train it with verl's own main."""
    from verl_hier.cli.live import RunTable
    from verl_hier.ops.progress import summary
    from verl_hier.ops.training import plan_run, start
    from verl_hier.recipe.check import check_recipe

    plan = plan_run(recipe, overrides or (), name=name, resume=resume)
    if from_scratch:
        check_recipe(plan.config)
        make(plan.config)
    show(recipe, check_recipe(plan.config, offline=False, command=spelled(recipe, overrides)), verbose)
    line()
    if verbose:
        run = start(plan, line, verbose=True)
    else:
        with RunTable(plan.total) as shown:
            run = start(plan, shown.said, step=shown.step)
    line()
    for sentence in summary(run.metrics()):
        line(sentence)
    table(run.contents())
    if run.saved_policy:
        line(f"next: verl-hier eval {shlex.quote(str(run.folder))}")
