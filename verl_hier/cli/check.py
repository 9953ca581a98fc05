"""`check`."""

from __future__ import annotations

import shlex
import time
from typing import TYPE_CHECKING, Annotated

import typer

from verl_hier.cli.output import line, table

if TYPE_CHECKING:
    from verl_hier.recipe.check import Report

Reference = Annotated[str, typer.Argument(metavar="RECIPE", help="A recipe's name, or the path of a YAML file.")]
Overrides = Annotated[list[str] | None, typer.Argument(help="Hydra overrides: key=value, +key=value, group=choice.")]


def check(
    recipe: Annotated[
        str | None, typer.Argument(metavar="[RECIPE]", help="A recipe's name, or the path of a YAML file.")
    ] = None,
    overrides: Overrides = None,
    every: Annotated[bool, typer.Option("--all", help="Check every combination that the recipe offers.")] = False,
    here: Annotated[
        bool,
        typer.Option(
            "--ready", help="Also list what this machine lacks to run it; exit code 2 when it lacks something."
        ),
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Also say what the tree engine would save.")] = False,
) -> None:
    """Say what a recipe would run, or why it cannot. Starts nothing."""
    from verl_hier.errors import HierError
    from verl_hier.recipe.check import check_recipe
    from verl_hier.recipe.compose import compose

    if every:
        _check_all(recipe, overrides or [])
    elif recipe is None:
        raise HierError("name a recipe (`verl-hier recipes` lists them), or check all of them with --all.")
    elif here:
        _ready(recipe, overrides, verbose)
    else:
        show(recipe, check_recipe(compose(recipe, overrides or ()), command=spelled(recipe, overrides)), verbose)


def _ready(recipe: str, overrides: list[str] | None, verbose: bool) -> None:
    """The report, then what is missing on this machine and the commands that bring it."""
    from verl_hier.recipe.check import check_ready
    from verl_hier.recipe.compose import compose

    report, missing = check_ready(compose(recipe, overrides or ()), spelled(recipe, overrides))
    _report(recipe, report, verbose)
    if not missing:
        line("ready: this machine has everything that it needs")
        return
    line("not ready on this machine:")
    for lack in missing:
        line(f"  {lack.why}")
    commands = [command for lack in missing for command in lack.commands]
    if commands:
        line("first run:")
        for command in commands:
            line(f"  {command}")
    raise typer.Exit(2)


def _check_all(reference: str | None, overrides: list[str]) -> None:
    """One line for each combination of size, model and server; exit code 2 when one of them is refused."""
    from functools import partial

    from verl_hier.host.side_by_side import side_by_side
    from verl_hier.recipe.catalogue import recipes as shipped

    started, checked, refused = time.monotonic(), 0, 0
    verdicts_of = partial(_verdicts, overrides=overrides)
    with side_by_side() as pool:
        # A single recipe is not worth the start of processes.
        every = map(verdicts_of, [reference]) if reference else pool.map(verdicts_of, [r.name for r in shipped()])
        for verdicts in every:
            for combination, reason in verdicts:
                line(f"{combination}: {f'refused: {reason}' if reason else 'ok'}")
                checked, refused = checked + 1, refused + bool(reason)
    line(f"{checked} combinations in {time.monotonic() - started:.0f} s, {refused} refused")
    if refused:
        raise typer.Exit(2)


def _verdicts(reference: str, overrides: list[str]) -> list[tuple[str, str]]:
    """Each combination that a recipe offers, and why it is refused; empty where it is not."""
    from verl_hier.recipe.catalogue import find
    from verl_hier.recipe.check import refusal

    return [
        (" ".join((reference, *choices)), refusal(reference, [*choices, *overrides]))
        for choices in find(reference).combinations()
    ]


def spelled(recipe: str, overrides: list[str] | None) -> str:
    """The recipe and those of its overrides that change its tasks or prompts, as a user would type them."""
    kept = [text for text in overrides or () if text.startswith(("hier", "size=", "model=", "server="))]
    return shlex.join([recipe, *kept])


def show(recipe: str, report: Report, verbose: bool = False) -> None:
    """What would run, and the commands that make its model where there is none yet."""
    _report(recipe, report, verbose)
    if report.first:
        line(f"first make the model at {report.model.path}:")
        for command in report.first:
            line(f"  {command}")


def _report(recipe: str, report: Report, verbose: bool) -> None:
    line(f"{recipe} can run:")
    table(report.lines(verbose))
    for note in report.notes:
        line(f"note: {note}")
