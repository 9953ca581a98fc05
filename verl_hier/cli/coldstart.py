"""`coldstart`, and its parts `tiny`, `demos` and `sft`: what a small model needs before reinforcement learning."""

from __future__ import annotations

import shlex
import time
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

from verl_hier.cli.check import Overrides, Reference
from verl_hier.cli.options import Seed, new_file, new_folder, positive, whole
from verl_hier.cli.output import StepBar, line


class Device(str, Enum):
    """Devices of verl's SFT trainer."""

    CPU = "cpu"
    CUDA = "cuda"


def coldstart(recipe: Reference, overrides: Overrides = None) -> None:
    """Make the small model that a recipe starts from.

    A random model and its vocabulary, demonstrations by the environment's expert, supervised training; the options
    below `hier.coldstart` say how much of each. What an equal call has made before is used again.
    """
    from verl_hier.recipe.compose import compose

    model = make(compose(recipe, overrides or ()))
    line(f"model: {model}")
    line(f"how often it succeeds: {shlex.join(['verl-hier', 'eval', str(model), recipe, *(overrides or ())])}")
    line(f"next: {shlex.join(['verl-hier', 'train', recipe, *(overrides or ())])}")


def make(config: Any) -> Path:
    """The cold start of a composed recipe, with a line for each stage and a bar for the supervised training."""
    from verl_hier.coldstart.build import build
    from verl_hier.verl_facts.versions import require_supported

    require_supported()
    started = time.monotonic()
    with StepBar("supervised training") as bar:
        model = build(config, report=line, progress=bar)
    line(f"cold start: {time.monotonic() - started:.0f} s")
    return model


def tiny(
    recipe: Reference,
    overrides: Overrides = None,
    out: Annotated[Path | None, new_folder("Folder of the model; omitted: that of the recipe's cold start.")] = None,
) -> None:
    """Build the random model of a cold start."""
    from verl_hier.coldstart.build import TINY, random_model, work_folder
    from verl_hier.recipe.composed import ComposedRecipe

    composed = ComposedRecipe.named(recipe, overrides or ())
    folder = out or work_folder(composed) / TINY
    line(f"model and tokenizer: {random_model([composed], folder)}")
    line(f"next: {shlex.join(['verl-hier', 'demos', recipe, *(overrides or ()), '--model', str(folder)])}")


def demos(
    recipe: Reference,
    overrides: Overrides = None,
    model: Annotated[
        Path | None, typer.Option(help="Folder of the tokenizer; omitted: that of the recipe's cold start.")
    ] = None,
    out: Annotated[
        Path | None, new_file("Parquet file to write; omitted: beside the folder of the tokenizer.", ".parquet")
    ] = None,
) -> None:
    """Write the demonstrations of a cold start."""
    from verl_hier.chat.tokenizer import load_tokenizer
    from verl_hier.coldstart.build import TINY, demonstrate, work_folder
    from verl_hier.errors import HierError
    from verl_hier.recipe.composed import ComposedRecipe

    composed = ComposedRecipe.named(recipe, overrides or ())
    model = model or work_folder(composed) / TINY
    if not (model / "config.json").is_file():
        raise HierError(f"there is no model at {model}; `verl-hier tiny {recipe}` makes one.")
    file = demonstrate(composed, load_tokenizer(model), out or model.parent / "demonstrations.parquet")
    line(f"demonstrations: {file}")
    line(f"next: {shlex.join(['verl-hier', 'sft', str(file), '--model', str(model)])}")


def sft(
    data: Annotated[list[Path], typer.Argument(help="Files of `verl-hier demos` or `verl-hier distill`.")],
    model: Annotated[Path, typer.Option(help="Folder of the untrained model.")],
    out: Annotated[
        Path | None, new_folder("Folder; the trained model is in `model` below it. Omitted: that of the first file.")
    ] = None,
    steps: Annotated[int, whole("Optimiser steps.")] = 450,
    batch_size: Annotated[int, whole("Rows a step.")] = 24,
    learning_rate: Annotated[float, positive("Highest learning rate.")] = 3e-3,
    device: Annotated[Device, typer.Option(help="Where it trains.")] = Device.CPU,
    seed: Seed = 0,
) -> None:
    """Train a model on demonstrations with verl's SFT trainer."""
    from verl_hier.coldstart import run_sft
    from verl_hier.errors import HierError
    from verl_hier.verl_facts.versions import require_supported

    require_supported()
    for file in data:
        if not file.is_file():
            raise HierError(f"there are no demonstrations at {file}; `verl-hier demos RECIPE` writes them.")
    if not (model / "config.json").is_file():
        raise HierError(f"there is no model at {model}; `verl-hier tiny RECIPE` makes one.")
    with StepBar("supervised training") as bar:
        trained = run_sft(
            model,
            data,
            out or data[0].parent,
            steps=steps,
            batch_size=batch_size,
            learning_rate=learning_rate,
            device=device.value,
            seed=seed,
            progress=bar,
        )
    line(f"trained model: {trained}")
    line(f"next: verl-hier train RECIPE actor_rollout_ref.model.path={shlex.quote(str(trained))}")
