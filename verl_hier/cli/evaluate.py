"""`eval`: what a saved, a base or a served policy reaches on a recipe, without training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from verl_hier.cli.check import Overrides
from verl_hier.cli.options import new_file, weight, whole
from verl_hier.cli.output import heading, line, table

if TYPE_CHECKING:
    from verl_hier.graph import RolloutGraph

SUFFIXES = (".parquet", ".jsonl", ".jsonl.gz")

Policy = Annotated[
    str,
    typer.Argument(
        metavar="POLICY",
        help="Folder of a run, folder or Hugging Face name of a model, address of an OpenAI-compatible endpoint, or "
        "`expert`.",
    ),
]
ServedModel = Annotated[
    str, typer.Option("--served-model", help="The model's name at the endpoint; omitted: the only one it serves.")
]


def evaluate(
    policy: Policy,
    recipe: Annotated[
        str | None,
        typer.Argument(metavar="[RECIPE]", help="Recipe that is played; omitted: that of the run."),
    ] = None,
    overrides: Overrides = None,
    split: Annotated[str | None, typer.Option(help="Split; omitted: the recipe's data.val_files.")] = None,
    tasks: Annotated[int | None, whole("The first so many tasks; omitted: all.")] = None,
    n: Annotated[int | None, whole("Episodes of each task; omitted: the recipe's.", "-n")] = None,
    temperature: Annotated[float | None, weight("0 is greedy; omitted: that of the recipe's validation.")] = None,
    seed: Annotated[int | None, whole("Root of all random numbers; omitted: hier.seed.", least=0)] = None,
    served_model: ServedModel = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
    graphs: Annotated[Path | None, new_file("File for the rollouts.", *SUFFIXES)] = None,
    sampler: Annotated[str | None, typer.Option(help="Sampler to search with; omitted: that of the recipe.")] = None,
    select: Annotated[
        str | None,
        typer.Option(help="Search: choose one of the n episodes of a task by `best`, `vote`, `value` or `verifier`."),
    ] = None,
    verifier: Annotated[
        str, typer.Option(help="Who verifies: the address of an endpoint, a model, or a name of `hier.rewards`.")
    ] = "",
    verifier_model: Annotated[str, typer.Option(help="The verifier's name at its endpoint.")] = "",
) -> None:
    """Measure a policy on a split, without training."""
    from verl_hier.graph import write_graphs
    from verl_hier.ops.evaluation import evaluate as measure
    from verl_hier.ops.rollouts import Plan, finish, recipe_of
    from verl_hier.ops.search import said_in_words, sampler_words, search_of

    given = list(overrides or ())
    if recipe is not None and "=" in recipe:  # without a recipe the first override takes its place
        given.insert(0, recipe)
        recipe = None
    options = {"n": n, "sampler": sampler, "select": select, "verifier": verifier, "verifier_model": verifier_model}
    said, given = said_in_words(options, given)
    search = search_of(said)
    composed = recipe_of(policy, recipe, [*sampler_words(said["sampler"]), *given])
    plan = Plan(split, tasks, said["n"], temperature, seed)
    result, rollouts = finish(measure(policy, composed, plan, served_model, _progress, search))
    if graphs is not None:
        write_graphs(graphs, rollouts)
    if as_json:
        line(json.dumps(result.to_dict(), indent=2))
        return
    table(result.lines())
    heading("by role")
    table(result.role_lines(), head=("role", "turns", "tokens", "tokens a turn", "invalid turns", "reward"))
    if result.search is not None:
        heading("search")
        table(result.search.lines())
        line()
        table(result.search.curve_lines(), head=result.search.curve_head())
    if graphs is not None:
        line(f"\nrollouts: {graphs}")


def _progress(graph: RolloutGraph, done: int, tasks: int) -> None:
    """A counter on the terminal."""
    import sys

    if sys.stderr.isatty():
        typer.echo(f"\r{done} of {tasks} tasks", err=True, nl=done == tasks)
