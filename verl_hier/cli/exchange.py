"""`export`, `import` and `convert`: stored rollouts in the formats of others and back, and old files as a store."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from verl_hier.cli.options import Graphs, new_file, new_folder
from verl_hier.cli.output import line
from verl_hier.errors import RecipeError


class Format(str, Enum):
    """Formats that are not ours, and are read."""

    CHAT = "chat"
    VERL = "verl"


class Written(str, Enum):
    """Formats that are not ours, and are written."""

    CHAT = "chat"
    VERL = "verl"
    ATIF = "atif"


class Template(str, Enum):
    """As `hier.rollout.template`."""

    CHAT = "chat"
    PLAIN = "plain"


def export(
    source: Graphs,
    to: Annotated[Written, typer.Option(help="Chat messages, verl's rollout dump, or ATIF's trajectories.")],
    out: Annotated[Path, new_file("File to write: .jsonl, or .parquet for chat messages.", ".jsonl", ".parquet")],
    model: Annotated[str | None, typer.Option(help="Tokenizer of the run, folder or name; for --to verl.")] = None,
) -> None:
    """Write rollouts in the formats of other tools."""
    from verl_hier.ops.exchange import export_atif, export_chat, export_dump
    from verl_hier.ops.stored import Stored

    graphs = Stored.at(source).graphs
    if to is not Written.VERL and model is not None:
        raise RecipeError(f"--model decodes the tokens of --to verl; --to {to.value} needs none, so leave it out.")
    if to is Written.ATIF:
        count = export_atif(graphs, out)
    elif to is Written.CHAT:
        count = export_chat(graphs, out)
    elif model is None:
        raise RecipeError("--to verl writes decoded tokens; name the run's tokenizer with --model FOLDER.")
    else:
        from verl_hier.chat.tokenizer import load_tokenizer

        count = export_dump(graphs, out, load_tokenizer(model))
    line(f"{count} lines: {out}")


def import_(
    source: Annotated[
        Path, typer.Argument(metavar="INPUT", exists=True, help="File, or verl's folder of STEP.jsonl files.")
    ],
    from_: Annotated[Format, typer.Option("--from", help="Chat messages, or verl's rollout dump.")],
    model: Annotated[str, typer.Option(help="Tokenizer, folder or name.")],
    out: Annotated[Path, new_file("Graph file to write.", ".jsonl", ".jsonl.gz", ".parquet")],
    template: Annotated[Template, typer.Option(help="See hier.rollout.template.")] = Template.CHAT,
) -> None:
    """Read chat messages or verl's rollout dump as rollouts."""
    from verl_hier.chat.tokenizer import load_renderer, load_tokenizer
    from verl_hier.graph import write_graphs
    from verl_hier.ops.exchange import import_chat, import_dump

    tokenizer = load_tokenizer(model)
    if from_ is Format.CHAT:
        graphs = import_chat(source, tokenizer, load_renderer(model, tokenizer, template.value))
    else:
        graphs = import_dump(source, tokenizer)
    episodes = sum(len(graph.episodes) for graph in graphs)
    line(f"{write_graphs(out, graphs)} tasks, {episodes} episodes: {out}")


def convert(
    source: Graphs,
    out: Annotated[Path, new_folder("Folder of the store to write.")],
) -> None:
    """Write graph files of any version as a store in columns.

    Files that are named after a step become that step, and those below `validation` its validation; other graphs are
    sorted by the step that started them.
    """
    from verl_hier.ops.exchange import convert as convert_all

    steps, tasks = convert_all(source, out)
    line(f"{tasks} tasks of {steps} steps: {out}")
