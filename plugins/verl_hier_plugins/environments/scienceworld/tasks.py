"""Task pools: the variations of ScienceWorld's own folds, which need no Java to be listed."""

from __future__ import annotations

import random
from typing import Any

from verl_hier.environments.splits import SPLITS
from verl_hier.errors import RecipeError
from verl_hier_plugins.environments.scienceworld.options import VARIATIONS, ScienceworldOptions

DATA_SOURCE = "scienceworld"


def fold(experiment: str, split: str) -> range:
    """The variations of a split: the first half of four each for training, a quarter for `val`, the rest for `test`."""
    quarter, all_ = VARIATIONS[experiment] // 4, VARIATIONS[experiment]
    return {
        "train": range(2 * quarter),
        "val": range(2 * quarter, 3 * quarter),
        "test": range(3 * quarter, all_),
    }[split]


def tasks(options: ScienceworldOptions, split: str) -> list[dict[str, Any]]:
    """The tasks of a split: `{instruction, data_source, id, experiment, seed}`, the experiments in turns.

    The seed is the number of the variation.

    Raises:
        RecipeError: for an unknown split, or when the experiments have fewer variations.
    """
    if split not in SPLITS:
        raise RecipeError(f"hier.environment: {DATA_SOURCE} has no split {split!r}; it has {', '.join(SPLITS)}.")
    wanted, option = (options.pool, "pool") if split == "train" else (options.validation, "validation")
    rng = random.Random(f"{DATA_SOURCE}-{options.seed}-{split}")
    left = {name: rng.sample(fold(name, split), len(fold(name, split))) for name in options.experiments}
    there = sum(map(len, left.values()))
    if wanted > there:
        raise RecipeError(
            f"hier.environment.{option}: the experiments have {there} variations in the split {split!r}, {wanted} are "
            "asked for; lower it, or add experiments."
        )
    found: list[dict[str, Any]] = []
    while len(found) < wanted:
        for name, variations in left.items():
            if variations and len(found) < wanted:
                task = {"instruction": name.replace("-", " "), "data_source": DATA_SOURCE, "experiment": name}
                found.append({**task, "seed": variations.pop(), "id": f"{split}-{len(found):05d}"})
    return found
