"""Tasks by their place in the taskset, which need no verifiers to be listed."""

from __future__ import annotations

import itertools
from typing import Any

from verl_hier.environments.splits import SPLITS
from verl_hier.errors import RecipeError
from verl_hier_plugins.environments.verifiers.options import VerifiersOptions

DATA_SOURCE = "verifiers"
SHARES = {"train": (0, 1, 2), "val": (3,), "test": (4,)}
"""Which of five tasks in a row are in a split."""


def places(split: str, size: int) -> list[int]:
    """The places in the taskset of the first tasks of a split."""
    in_split = (n for n in itertools.count() if n % 5 in SHARES[split])
    return list(itertools.islice(in_split, size))


def tasks(options: VerifiersOptions, split: str) -> list[dict[str, Any]]:
    """The tasks of a split: `{instruction, place, data_source, id}`.

    Raises:
        RecipeError: for an unknown split.
    """
    if split not in SPLITS:
        raise RecipeError(f"hier.environment: {DATA_SOURCE} has no split {split!r}; it has {', '.join(SPLITS)}.")
    size = options.pool if split == "train" else options.validation
    return [
        {
            "instruction": options.instruction,
            "place": place,
            "split": split,
            "data_source": DATA_SOURCE,
            "id": f"{split}-{number:05d}",
        }
        for number, place in enumerate(places(split, size))
    ]
