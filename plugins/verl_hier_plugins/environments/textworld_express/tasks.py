"""Task pools: the seeds of TextWorldExpress's own folds, which need no Java to be listed."""

from __future__ import annotations

import random
from typing import Any

from verl_hier.environments.splits import SPLITS
from verl_hier.errors import RecipeError
from verl_hier_plugins.environments.textworld_express.options import TextworldExpressOptions

DATA_SOURCE = "textworld_express"
FOLDS = {"train": ("train", 0), "val": ("dev", 10_000), "test": ("test", 20_000)}
"""The fold of a split, and its first seed."""
SEEDS = 1000
"""Seeds of a fold."""
INSTRUCTIONS = {
    "cookingworld": "cook the meal of the cookbook and eat it",
    "twc": "put every thing where it belongs",
    "coin": "find the coin and take it",
    "mapreader": "take the coin and put it into the box",
    "arithmetic": "solve the problem and put that many things into the box",
    "simonsays": "do what simon says",
    "peckingorder": "do what the instructions say, again and again",
}
"""What is asked for; the game's own description, which may name rooms, comes with the first observation."""


def tasks(options: TextworldExpressOptions, split: str) -> list[dict[str, Any]]:
    """The tasks of a split: `{instruction, data_source, id, game, fold, seed}`, the games in turns.

    Raises:
        RecipeError: for an unknown split, or when a game would need more seeds than its fold has.
    """
    if split not in SPLITS:
        raise RecipeError(f"hier.environment: {DATA_SOURCE} has no split {split!r}; it has {', '.join(SPLITS)}.")
    wanted, option = (options.pool, "pool") if split == "train" else (options.validation, "validation")
    games = options.games
    if wanted > SEEDS * len(games):
        raise RecipeError(
            f"hier.environment.{option}: {len(games)} games have {SEEDS * len(games)} tasks in the split {split!r}, "
            f"{wanted} are asked for; lower it, or add games."
        )
    fold, first = FOLDS[split]
    seeds = random.Random(f"{DATA_SOURCE}-{options.seed}-{split}").sample(range(first, first + SEEDS), SEEDS)
    return [
        {
            "instruction": INSTRUCTIONS[games[number % len(games)]],
            "data_source": DATA_SOURCE,
            "id": f"{split}-{number:05d}",
            "game": games[number % len(games)],
            "fold": fold,
            "seed": seeds[number // len(games)],
        }
        for number in range(wanted)
    ]
