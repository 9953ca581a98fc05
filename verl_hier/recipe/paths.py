"""Where the commands of the cold start put what they make, unless they are told otherwise."""

from pathlib import Path

COLD_START = Path("runs/coldstart")
"""Folder of the models that `verl-hier coldstart` makes, one folder for each `hier.coldstart.name`."""
DISTILLED = Path("runs/distill")
"""Folder of `verl-hier distill`."""
