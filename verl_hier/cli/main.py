"""Entry point: commands are functions of the sibling modules; errors that a user can act on are one sentence."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from verl_hier import __version__
from verl_hier.cli import (
    bench,
    check,
    coldstart,
    compare,
    create,
    distill,
    env,
    evaluate,
    exchange,
    failures,
    from_gguf,
    inspect,
    lab,
    others,
    parts,
    quickstart,
    recipes,
    recredit,
    replay,
    train,
    view,
)
from verl_hier.errors import FULL, HierError, RecipeError, refusal
from verl_hier.text import visible

app = typer.Typer(
    name="verl-hier",
    help="Hierarchical, tree-shaped and multi-agent RL for language models, beside stock verl.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
DEBUG = "--debug"


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"verl-hier {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    debug: Annotated[bool, typer.Option(DEBUG, help="Show the traceback of an error.")] = False,
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True)] = False,
) -> None:
    pass


class RecipeCommand(TyperCommand):
    """A command whose recipe may be given as two words, a method and an environment."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """What Click reads, with the two words as the name of one recipe."""
        rest: list[str] = super().parse_args(ctx, args)
        from verl_hier.recipe.pairs import joined  # not for `--help`, which has ended by now

        if {"recipe", "overrides"} <= ctx.params.keys():
            words = ctx.params["overrides"] or ()
            ctx.params["recipe"], ctx.params["overrides"] = joined(ctx.params["recipe"], words)
        return rest


RUNNING, LOOKING, MAKING = "Running", "Looking", "Making"
COMMANDS: tuple[tuple[str, dict[str, Callable[..., None]]], ...] = (
    (RUNNING, {"quickstart": quickstart.quickstart}),
    (RUNNING, {"check": check.check, "train": train.train, "eval": evaluate.evaluate, "recipes": recipes.recipes}),
    (RUNNING, {"coldstart": coldstart.coldstart, "tiny": coldstart.tiny, "demos": coldstart.demos}),
    (RUNNING, {"distill": distill.distill, "sft": coldstart.sft, "from-gguf": from_gguf.from_gguf}),
    (
        LOOKING,
        {
            "view": view.view,
            "compare": compare.compare,
            "bench": bench.bench,
            "env": env.env,
            "lab": lab.lab,
            "doctor": inspect.doctor,
            "plugins": inspect.plugins,
            "conformance": inspect.conformance,
            "credit": recredit.credit,
            "replay": replay.replay,
            "failures": failures.failures,
            "export": exchange.export,
            "import": exchange.import_,
            "convert": exchange.convert,
        },
    ),
    (LOOKING, {f"{kind}s": parts.command(kind) for kind in parts.KINDS}),
    (MAKING, {"new": create.new}),
)
for panel, commands in COMMANDS:
    for name, function in commands.items():
        app.command(name, cls=RecipeCommand, rich_help_panel=panel)(function)


def main() -> None:
    """Run the command line; a `HierError`, or a refusal of the disk, becomes one sentence and its exit code."""
    arguments = [argument for argument in sys.argv[1:] if argument != DEBUG]
    try:
        others.add_commands(app, arguments, {name for _, commands in COMMANDS for name in commands})
        app(args=arguments, prog_name="verl-hier")
    except (HierError, OSError) as error:
        if DEBUG in sys.argv:
            raise
        typer.echo(f"verl-hier: {visible(place_of(error, arguments) + sentence_of(error))}", err=True)
        sys.exit(error.exit_code if isinstance(error, HierError) else HierError.exit_code)


def place_of(error: BaseException, arguments: Sequence[str]) -> str:
    """`mine.yaml:3: ` where an error begins with a key that stands in the recipe file of the command; else nothing."""
    from verl_hier.recipe.yaml_files import line_of

    file = next((word for word in arguments if word.endswith((".yaml", ".yml"))), None)
    key, colon, _ = str(error).partition(": ")
    if file is None or not colon or not isinstance(error, RecipeError):
        return ""
    try:
        line = line_of(Path(file).expanduser(), key)
    except HierError:
        return ""
    return "" if line is None else f"{file}:{line}: "


def sentence_of(error: HierError | OSError) -> str:
    """What an error says; of the operating system's errors, the file and the reason."""
    if isinstance(error, OSError) and error.errno in FULL:
        return f"{error.filename or 'a file'} cannot be written: {refusal(error)}."
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}; `--debug` shows where it was needed."
    return str(error)


if __name__ == "__main__":
    main()
