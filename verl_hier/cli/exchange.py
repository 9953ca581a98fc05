"""`export`, `import` and `convert`: stored rollouts in the formats of others and back, and old files as a store."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

from verl_hier.cli.options import Graphs, finite, new_file, new_folder, weight
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
    SFT = "sft"
    PAIRS = "pairs"
    STATES = "states"


class Template(str, Enum):
    """As `hier.rollout.template`."""

    CHAT = "chat"
    PLAIN = "plain"


class Take(str, Enum):
    """What the rows to learn from are made of."""

    BEST = "best"
    REVISED = "revised"
    SIBLINGS = "siblings"
    ERRORS = "errors"


class RowForm(str, Enum):
    """As `Lessons.form`."""

    MESSAGES = "messages"
    TURNS = "turns"
    PLAIN = "plain"


def export(
    source: Graphs,
    to: Annotated[
        Written,
        typer.Option(help="Chat messages, verl's dump, ATIF, rows for supervised training, pairs, graphs of states."),
    ],
    out: Annotated[Path, new_file("File to write: .jsonl, or .parquet for chat, sft and pairs.", ".jsonl", ".parquet")],
    model: Annotated[
        str | None, typer.Option(help="Tokenizer of the run, folder or name; for --to verl and --form plain.")
    ] = None,
    take: Annotated[
        Take | None, typer.Option(help="sft: best or revised attempts. pairs: siblings, errors or revised.")
    ] = None,
    form: Annotated[
        RowForm | None, typer.Option(help="sft and pairs: whole contexts, a turn a row, or a turn a row as texts.")
    ] = None,
    least: Annotated[float | None, finite("sft and pairs: least return of what is learned.")] = None,
    gap: Annotated[float, weight("pairs: least difference of the two values.")] = 0.0,
    role: Annotated[list[str] | None, typer.Option(help="sft and pairs: whose turns; can be repeated.")] = None,
    policy: Annotated[str | None, typer.Option(help="sft and pairs: the policy whose turns are learned.")] = None,
    thought: Annotated[str | None, typer.Option(help="revised: what is said where an attempt turns back.")] = None,
) -> None:
    """Write rollouts in the formats of other tools."""
    from verl_hier.ops.exchange import export_atif, export_chat, export_dump
    from verl_hier.ops.stored import Stored

    graphs = Stored.at(source).graphs
    lessons = {"take": take, "form": form, "least": least, "gap": gap or None, "role": role, "policy": policy}
    lessons |= {"thought": thought}
    if to in (Written.SFT, Written.PAIRS):
        _export_lessons(graphs, to, out, model, lessons)
        return
    given = next((name for name, value in lessons.items() if value is not None), None)
    if given is not None:
        raise RecipeError(f"--{given} is of --to sft and --to pairs; leave it out with --to {to.value}.")
    if to is not Written.VERL and model is not None:
        raise RecipeError(f"--model decodes the tokens of --to verl; --to {to.value} needs none, so leave it out.")
    if to is Written.STATES:
        from verl_hier.ops.exchange.states import export_states

        count, unnamed = export_states(graphs, out)
        line(f"{count} lines: {out}")
        if unnamed:
            line(f"turns in no named state: {', '.join(f'{many} of {who}' for who, many in unnamed.items())}")
        return
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


def _export_lessons(source: Path, to: Written, out: Path, model: str | None, given: dict[str, Any]) -> None:
    """Rows to learn from, and what was left out of them."""
    from verl_hier.ops.exchange import pairs
    from verl_hier.ops.exchange.lessons import Lessons, best_attempts

    ways = {
        Written.SFT: {Take.BEST: best_attempts, Take.REVISED: pairs.revised_attempts},
        Written.PAIRS: {Take.SIBLINGS: pairs.siblings, Take.ERRORS: pairs.errors, Take.REVISED: pairs.revisions},
    }[to]
    take = given["take"] or next(iter(ways))
    if take not in ways:
        raise RecipeError(f"--take {take.value}: --to {to.value} takes {' or '.join(way.value for way in ways)}.")
    revised = take is Take.REVISED
    form = given["form"] or (RowForm.TURNS if revised and to is Written.SFT else RowForm.MESSAGES)
    if revised and form is RowForm.PLAIN:
        raise RecipeError("--take revised writes conversations that no policy was given; leave --form plain out.")
    if form is RowForm.TURNS and to is Written.PAIRS:
        raise RecipeError("--form turns is of --to sft; a pair is always one turn, as messages or plain.")
    if form is RowForm.MESSAGES and revised and to is Written.SFT:
        raise RecipeError("--take revised has turns that nobody should learn: its rows are turns; leave --form out.")
    if (form is RowForm.PLAIN) != (model is not None):
        raise RecipeError(
            "--form plain decodes tokens: name the run's tokenizer with --model FOLDER for it, and only for it."
        )
    if given["thought"] is not None and not revised:
        raise RecipeError("--thought is of --take revised; leave it out.")
    if given["gap"] is not None and to is Written.SFT:
        raise RecipeError("--gap is of --to pairs; leave it out.")
    lessons = Lessons(
        form=form.value,
        least=given["least"],
        gap=given["gap"] or 0.0,
        roles=frozenset(given["role"]) if given["role"] else None,
        policies=frozenset([given["policy"]]) if given["policy"] else None,
        thought=pairs.THOUGHT if given["thought"] is None else given["thought"],
    )
    if model is not None:
        from verl_hier.chat.tokenizer import load_tokenizer

        lessons.tokenizer = load_tokenizer(model)
    count = lessons.write(source, out, ways[take])
    line(f"{count} lines: {out}")
    for what in (f"left out: {lessons.told()}" if lessons.told() else "", *lessons.notes()):
        if what:
            line(what)


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
