"""`env`: one task of an environment in the terminal, by hand, by the expert or by a model, through any worker."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from verl_hier.cli.check import Overrides
from verl_hier.cli.evaluate import ServedModel
from verl_hier.cli.inspect import Enable
from verl_hier.cli.options import new_file, whole
from verl_hier.cli.output import line


def env(
    environment: Annotated[
        str | None, typer.Argument(metavar="[ENVIRONMENT]", help="Name of the environment; omitted: that of --recipe.")
    ] = None,
    overrides: Overrides = None,
    worker: Annotated[
        str | None, typer.Option(help="Who takes turns; omitted: the worker of a recipe of the environment.")
    ] = None,
    recipe: Annotated[str | None, typer.Option(help="Play what this recipe plays.")] = None,
    expert: Annotated[bool, typer.Option("--expert", help="Let the environment's expert play.")] = False,
    policy: Annotated[
        str | None, typer.Option(help="Let a run, a model or an endpoint play, as in `verl-hier eval`.")
    ] = None,
    served_model: ServedModel = "",
    task: Annotated[int, whole("Number of the task in its split.", least=0)] = 0,
    split: Annotated[str | None, typer.Option(help="Split; omitted: the recipe's data.val_files.")] = None,
    seed: Annotated[int | None, whole("Root of all random numbers; omitted: hier.seed.", least=0)] = None,
    baselines: Annotated[
        bool, typer.Option("--baselines", help="Measure what constant answers and policies of one line win.")
    ] = False,
    out: Annotated[
        Path | None, new_file("With --baselines: a JSON file to which the measurement is added.", ".json")
    ] = None,
    enable: Enable = None,
) -> None:
    """Play a task by hand or by a policy, or measure guesses."""
    from verl_hier.errors import HierError
    from verl_hier.ops.live_episode import by_hand, play_live, recipe_for
    from verl_hier.ops.players import EXPERT, player_of
    from verl_hier.ops.rollouts import finish
    from verl_hier.recipe.composed import ComposedRecipe

    given = list(overrides or ())
    if environment is not None and "=" in environment:
        given.insert(0, environment)
        environment = None
    if baselines:
        measure_baselines(environment, recipe, given, out, enable or ())
        return
    if expert and policy:
        raise HierError("choose one of --expert and --policy.")
    if recipe is not None:
        further = [f"hier.worker={{name: {worker}}}"] if worker else []
        chosen = ComposedRecipe.named(recipe, [*further, *given])
    elif environment is None:
        raise HierError("name an environment (`verl-hier environments` lists them), or a recipe with --recipe.")
    else:
        chosen = recipe_for(environment, worker, given, enable or ())
    source = EXPERT if expert else policy
    if source:
        player = player_of(source, chosen, served_model)
    else:
        player = by_hand(chosen, _ask, line)
        line("Type what the agent says. `?` lists possible actions, a backslash at the end of a line goes on, and")
        line("Ctrl-D ends the episode.")
    parts = chosen.parts
    line(f"{parts.environment.spec.name}, worker {parts.worker.spec.name}, played by {player.name}")
    finish(play_live(chosen, player, task, line, split, seed))


def measure_baselines(
    environment: str | None, recipe: str | None, overrides: Sequence[str], out: Path | None, enable: Sequence[str]
) -> None:
    """Measure every family and difficulty of an environment, or the tasks of a recipe, and say what was won."""
    from verl_hier.environments.baselines import MARGIN
    from verl_hier.ops.baselines import kept, measured, sources, write

    kept(out)  # so that a wrong file is refused before the work
    name, found = sources(environment, recipe, overrides, enable)
    for variant, result in measured(found):
        won = ", ".join(f"{policy} {share:.0%}" for policy, share in result.won.items())
        line(f"{variant}: {won}; chance {result.chance:.0%} ({result.tasks} tasks)")
        if result.excess > MARGIN:
            line(f"  a policy of one line wins {100 * result.excess:.0f} points more than chance")
        if out is not None:
            write(out, name, variant, result)


def _ask(prompt: str) -> str | None:
    sys.stdout.write(prompt)
    sys.stdout.flush()
    text = sys.stdin.readline()
    if not text:
        line()
        return None
    return text.rstrip("\n")
