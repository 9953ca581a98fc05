"""The folders of steps in a store, and when one of them is whole."""

from __future__ import annotations

import logging
import os
import re
from pathlib import Path

from verl_hier.errors import GraphError, refusal
from verl_hier.graph.atomic_write import atomic_write
from verl_hier.graph.bounded_reading import folder_entries
from verl_hier.graph.places import place, remove_folder

logger = logging.getLogger(__name__)
MARK = "credit.parquet"
"""The last file of a step, which marks it as whole."""
_STEP = re.compile(r"step_\d{6,}")
_CARD = """---
configs:
- config_name: nodes
  data_files: "step_*/nodes-*.parquet"
- config_name: episodes
  data_files: "step_*/episodes-*.parquet"
- config_name: tasks
  data_files: "step_*/tasks-*.parquet"
- config_name: credit
  data_files: "step_*/credit.parquet"
---

Rollouts that verl-hier stored: a row a turn in `nodes`, an attempt in `episodes`, a group in `tasks`, and in `credit`
the credit of each turn. Rows belong together by `step`, `uid` and `node` or `episode`.
"""
"""The card of a store, by which the Hugging Face library datasets knows which of its files belong together."""


def step_folder(store: str | os.PathLike[str], step: int) -> Path:
    """The folder of a step in a store, which may be a URL."""
    return place(store) / f"step_{step:06d}"


def is_step(folder: Path) -> bool:
    """Whether a folder is that of a step in a store."""
    return _STEP.fullmatch(folder.name) is not None and folder.is_dir()


def is_whole(folder: Path) -> bool:
    """Whether all of a step was written; a run may be writing it now."""
    if (folder / MARK).exists():
        return True
    logger.warning("%s is left out: it was not written to its end, and has no %s.", folder, MARK)
    return False


def keep_below(store: Path, most: float) -> list[str]:
    """Remove the oldest steps of a store until the others are small enough; the newest one always stays.

    Args:
        store: the folder of the steps.
        most: bytes of the files of all steps together.

    Returns:
        the names of the folders that were removed.

    Raises:
        GraphError: when one cannot be removed.
    """
    steps = sorted((entry for entry in folder_entries(store) if is_step(entry)), key=lambda entry: int(entry.name[5:]))
    sizes = [sum(file.stat().st_size for file in step.iterdir()) for step in steps]
    total, removed = sum(sizes), []
    for step, size in zip(steps[:-1], sizes, strict=False):
        if total <= most:
            break
        try:
            (step / MARK).unlink(missing_ok=True)  # what a kill leaves of it does not count as a step
            remove_folder(step)
        except OSError as error:
            raise GraphError(f"cannot remove {step} from the store: {refusal(error)}.") from error
        total -= size
        removed.append(step.name)
    return removed


def write_card(store: Path) -> None:
    """Write the card of a store where it has none.

    Raises:
        OSError: when the disk refuses.
    """
    file = store / "README.md"
    if not file.exists():
        with atomic_write(file) as beside:
            beside.write_text(_CARD, encoding="utf-8")
