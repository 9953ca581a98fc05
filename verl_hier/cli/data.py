"""`tiny`, `demos`, `sft`: what a small model needs before reinforcement learning can start."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from verl_hier.cli.check import Overrides, Reference
from verl_hier.cli.options import Seed, new_file, new_folder, positive, share, whole
from verl_hier.cli.output import line
from verl_hier.recipe.paths import COLD_START

TINY = COLD_START / "tiny"
DEMONSTRATIONS = COLD_START / "demonstrations.parquet"


def tiny(
    recipe: Reference,
    overrides: Overrides = None,
    out: Annotated[Path, new_folder("Folder of the model.")] = TINY,
    seed: Seed = 0,
    hidden: Annotated[int, whole("Width of the model.", least=4)] = 96,
    layers: Annotated[int, whole("Layers of the model.")] = 2,
    head_dim: Annotated[
        int | None, whole("Width of a head; omitted: a fourth of the model's. vLLM on a CPU needs 32.", least=2)
    ] = None,
) -> None:
    """Build a small model and its tokenizer for a recipe."""
    from verl_hier.coldstart import TinyShape, build_tiny
    from verl_hier.coldstart.recipe import texts_of
    from verl_hier.recipe.composed import ComposedRecipe

    texts = texts_of(ComposedRecipe.named(recipe, overrides or ()), seed)
    shape = TinyShape(hidden=hidden, layers=layers, intermediate=2 * hidden, head_dim=head_dim)
    line(f"model and tokenizer: {build_tiny(out, texts, seed=seed, shape=shape)}")


def demos(
    recipe: Reference,
    overrides: Overrides = None,
    model: Annotated[Path, typer.Option(help="Folder of the tokenizer.")] = TINY,
    out: Annotated[Path, new_file("Parquet file to write.", ".parquet")] = DEMONSTRATIONS,
    n: Annotated[int, whole("Episodes.", "-n")] = 480,
    random_action: Annotated[float, share("Share of random admissible actions.")] = 0.08,
    skip_stage: Annotated[float, share("Share of goals shown without a stage they need.")] = 0.35,
    seed: Seed = 0,
) -> None:
    """Write demonstrations by the environment's expert."""
    from verl_hier.coldstart import Noise, write_demonstrations
    from verl_hier.compat.tokenizer import load_tokenizer
    from verl_hier.errors import HierError
    from verl_hier.recipe.composed import ComposedRecipe

    if not (model / "config.json").is_file():
        raise HierError(f"there is no model at {model}; `verl-hier tiny {recipe}` makes one.")
    composed = ComposedRecipe.named(recipe, overrides or ())
    file = write_demonstrations(
        composed.parts.environment,
        composed.parts.worker,
        load_tokenizer(model),
        out,
        n,
        Noise(random_action=random_action, skip_stage=skip_stage),
        seed,
        composed.limits,
    )
    line(f"demonstrations: {file}")


def sft(
    demonstrations: Annotated[list[Path] | None, typer.Argument(help="Files of `verl-hier demos`.")] = None,
    model: Annotated[Path, typer.Option(help="Folder of the untrained model.")] = TINY,
    out: Annotated[Path, new_folder("Folder; the trained model is in `model` below it.")] = COLD_START,
    steps: Annotated[int, whole("Optimiser steps.")] = 1300,
    batch_size: Annotated[int, whole("Rows a step.")] = 24,
    learning_rate: Annotated[float, positive("Highest learning rate.")] = 3e-3,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    seed: Seed = 0,
) -> None:
    """Train a model on demonstrations with verl's SFT trainer."""
    from verl_hier.coldstart import run_sft
    from verl_hier.compat.versions import require_supported
    from verl_hier.errors import HierError

    require_supported()
    files = demonstrations or [DEMONSTRATIONS]
    for file in files:
        if not file.is_file():
            raise HierError(f"there are no demonstrations at {file}; `verl-hier demos RECIPE` writes them.")
    if not (model / "config.json").is_file():
        raise HierError(f"there is no model at {model}; `verl-hier tiny RECIPE` makes one.")
    trained = run_sft(
        model,
        files,
        out,
        steps=steps,
        batch_size=batch_size,
        learning_rate=learning_rate,
        device=device,
        seed=seed,
    )
    line(f"trained model: {trained}")
