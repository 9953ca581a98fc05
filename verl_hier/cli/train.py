"""`check` and `train`."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from verl_hier.cli.output import line, table

if TYPE_CHECKING:
    from verl_hier.recipe.check import Report

Reference = Annotated[str, typer.Argument(metavar="RECIPE", help="A recipe's name, or the path of a YAML file.")]
Overrides = Annotated[list[str] | None, typer.Argument(help="Hydra overrides: key=value, +key=value, group=choice.")]
_OUR_ERROR = re.compile(rb"verl_hier\.errors\.\w+: (.+)")


def check(
    recipe: Annotated[
        str | None, typer.Argument(metavar="[RECIPE]", help="A recipe's name, or the path of a YAML file.")
    ] = None,
    overrides: Overrides = None,
    every: Annotated[bool, typer.Option("--all", help="Check every combination that the recipe offers.")] = False,
) -> None:
    """Say what a recipe would run, or why it cannot. Starts nothing."""
    from verl_hier.errors import HierError
    from verl_hier.recipe.check import check_recipe
    from verl_hier.recipe.compose import compose

    if every:
        _check_all(recipe, overrides or [])
    elif recipe is None:
        raise HierError("name a recipe (`verl-hier recipes` lists them), or check all of them with --all.")
    else:
        _show(recipe, check_recipe(compose(recipe, overrides or ()), command=_spelled(recipe, overrides)))


def _check_all(reference: str | None, overrides: list[str]) -> None:
    """One line for each combination of size, model and server; exit code 2 when one of them is refused."""
    from concurrent.futures import ProcessPoolExecutor
    from functools import partial
    from multiprocessing import get_context

    from verl_hier.recipe.catalogue import recipes as shipped

    started, checked, refused = time.monotonic(), 0, 0
    verdicts_of = partial(_verdicts, overrides=overrides)
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
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
    from verl_hier.errors import HierError
    from verl_hier.recipe.catalogue import find
    from verl_hier.recipe.check import check_recipe
    from verl_hier.recipe.compose import compose, files_read_once

    found = []
    with files_read_once():
        for choices in find(reference).combinations():
            reason = ""
            try:
                check_recipe(compose(reference, [*choices, *overrides]))
            except HierError as error:
                reason = str(error)
            found.append((" ".join((reference, *choices)), reason))
    return found


def train(recipe: Reference, overrides: Overrides = None) -> None:
    """Check a recipe, then run it with verl's own main."""
    from verl_hier.recipe.check import check_recipe
    from verl_hier.recipe.compose import command, compose

    config = compose(recipe, overrides or ())
    _show(recipe, check_recipe(config, offline=False, command=_spelled(recipe, overrides)))
    arguments = [sys.executable, "-m", *command(recipe, overrides or ())]
    code, reason = run(arguments, environment(config))
    if code:
        line()
        raise_for(code, reason, config)


def environment(config: Any) -> dict[str, str]:
    """Environment variables of the run: the driver must know the platform before it imports verl."""
    variables = dict(os.environ)
    if config.trainer.device == "cpu":
        variables["VERL_PLATFORM"] = "cpu"
    variables.setdefault("HYDRA_FULL_ERROR", "1")
    return variables


def run(arguments: list[str], variables: dict[str, str]) -> tuple[int, str]:
    """Run verl and pass its output through.

    Returns:
        Exit code, and the last error of ours that the run printed (a Ray traceback hides it among hundreds of lines).
    """
    process = subprocess.Popen(arguments, env=variables, stderr=subprocess.PIPE)
    reasons: list[str] = []
    watcher = threading.Thread(target=_forward, args=(process, reasons), daemon=True)
    watcher.start()
    previous = signal.signal(signal.SIGTERM, lambda *_: process.terminate())
    try:
        code = _wait(process)
    finally:
        signal.signal(signal.SIGTERM, previous)
    watcher.join(timeout=5)
    return code, reasons[-1] if reasons else ""


def _wait(process: subprocess.Popen[bytes]) -> int:
    """Wait through Ctrl-C: the terminal sends it to verl as well, which then shuts Ray down by itself."""
    while True:
        try:
            code = process.wait()
        except KeyboardInterrupt:
            continue
        return code if code >= 0 else 128 - code


def _forward(process: subprocess.Popen[bytes], reasons: list[str]) -> None:
    stream: Any = process.stderr
    rest = b""
    while chunk := stream.read1(65536):
        sys.stderr.buffer.write(chunk)
        sys.stderr.buffer.flush()
        *lines, rest = (rest + chunk).split(b"\n")
        for found in map(_OUR_ERROR.search, [*lines, rest]):
            if found:
                reasons.append(found[1].decode(errors="replace").strip())


def raise_for(code: int, reason: str, config: Any) -> None:
    """End with one sentence on how to go on, and the run's own exit code."""
    folder = Path(config.trainer.default_local_dir)
    tracker = folder / "latest_checkpointed_iteration.txt"
    why = f": {reason}" if reason else "; its messages are above"
    if tracker.is_file():
        step = tracker.read_text().strip()
        cure = f"the same command goes on from step {step} in {folder}."
        if config.trainer.resume_mode == "disable":
            cure = f"add trainer.resume_mode=auto to go on from step {step} in {folder}."
    elif config.trainer.save_freq > 0:
        cure = "no checkpoint was written yet, so the same command starts anew."
    else:
        cure = "it wrote no checkpoints; add trainer.save_freq=5 to be able to resume the next one."
    typer.echo(f"verl-hier: the run ended with exit code {code}{why} - {cure}", err=True)
    raise typer.Exit(code)


def _spelled(recipe: str, overrides: list[str] | None) -> str:
    """The recipe and those of its overrides that change its tasks or prompts, as a user would type them."""
    kept = [text for text in overrides or () if text.startswith(("hier", "size=", "model=", "server="))]
    return shlex.join([recipe, *kept])


def _show(recipe: str, report: Report) -> None:
    line(f"{recipe} can run:")
    table(report.lines())
    for note in report.notes:
        line(f"note: {note}")
    if report.first:
        line(f"first make the model at {report.model.path}:")
        for command in report.first:
            line(f"  {command}")
