"""`train`."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Annotated, Any

import typer

from verl_hier.cli.check import Overrides, Reference, show, spelled
from verl_hier.cli.coldstart import make
from verl_hier.cli.output import line

_OUR_ERROR = re.compile(rb"verl_hier\.errors\.\w+: (.+)")


def train(
    recipe: Reference,
    overrides: Overrides = None,
    from_scratch: Annotated[
        bool, typer.Option("--from-scratch", help="First make the small model, as `verl-hier coldstart` does.")
    ] = False,
) -> None:
    """Check a recipe, then run it with verl's own main."""
    from verl_hier.recipe.check import check_recipe
    from verl_hier.recipe.compose import command, compose

    config = compose(recipe, overrides or ())
    if from_scratch:
        check_recipe(config)
        make(config)
    show(recipe, check_recipe(config, offline=False, command=spelled(recipe, overrides)))
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
