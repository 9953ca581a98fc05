"""Where the commands of the cold start put what they make, unless they are told otherwise."""

from pathlib import Path

COLD_START = Path("runs/coldstart")
"""Folder of `verl-hier tiny`, `demos` and `sft`; the trained model of `hier/model: tiny` is in `model` below it."""
DISTILLED = Path("runs/distill")
"""Folder of `verl-hier distill`."""
