"""Task pools: starting positions by seed, each in one split if the game has enough of them."""

from __future__ import annotations

import functools
import json
from typing import Any

from verl_hier.environments.splits import SPLITS, draw_tasks
from verl_hier.errors import RecipeError
from verl_hier.rollout.seeds import derive
from verl_hier_plugins.environments.textarena.chance import Chance
from verl_hier_plugins.environments.textarena.games import GAMES, anchor
from verl_hier_plugins.environments.textarena.library import start
from verl_hier_plugins.environments.textarena.options import TextarenaOptions, family

DATA_SOURCE = "textarena"
PROBED = 64
"""Number of starts that are drawn to see whether a game has many."""

MANY = PROBED // 2


def tasks(options: TextarenaOptions, split: str) -> list[dict[str, Any]]:
    """The tasks of a split: `{instruction, data_source, id, seed, seat}`, in a fixed order.

    For a game with many starts, each occurs once and in one split only. A game with few (an empty board, three cards)
    repeats them with other random events and opponents; its splits differ in their seeds.
    """
    if split not in SPLITS:
        raise RecipeError(f"hier.environment: textarena has no split {split!r}; it has {', '.join(SPLITS)}.")
    wanted = options.pool if split == "train" else options.validation
    if not _has_many(options):
        return [{"id": f"{split}-{n + 1:05d}", **_task(options, _seed(options, split, n), n)} for n in range(wanted)]

    def make(draw: int, number: int) -> tuple[str, dict[str, Any]]:
        # The seat alternates with the tasks, not with the draws, so that a pool has equal numbers of each.
        seed = _seed(options, "start", draw)
        return _fingerprint(options, seed), _task(options, seed, number)

    return draw_tasks(make, split, wanted, options.game)


def _has_many(options: TextarenaOptions) -> bool:
    return len({_fingerprint(options, _seed(options, "start", draw)) for draw in range(PROBED)}) >= MANY


def _seed(options: TextarenaOptions, name: str, draw: int) -> int:
    return derive(options.seed, DATA_SOURCE, name, draw)


def _task(options: TextarenaOptions, seed: int, number: int) -> dict[str, Any]:
    known = GAMES.get(family(options.game))
    return {
        "instruction": known.goal if known is not None else f"play {options.game} and win",
        "data_source": DATA_SOURCE,
        "seed": seed,
        # The environment takes it modulo the number of players.
        "seat": number if options.seat is None else options.seat,
    }


def _fingerprint(options: TextarenaOptions, seed: int) -> str:
    return _drawn(options.game, json.dumps(dict(options.settings), sort_keys=True), options.players, seed)


# All splits draw the same starts, and generating some boards takes a tenth of a second.
@functools.lru_cache(maxsize=1 << 16)
def _drawn(game: str, settings: str, players: int | None, seed: int) -> str:
    with Chance("start", seed).at_play():
        return anchor(start(game, json.loads(settings), players, seed), GAMES.get(family(game)))
