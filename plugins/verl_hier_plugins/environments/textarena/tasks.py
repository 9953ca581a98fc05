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
    """The tasks of a split: `{instruction, data_source, id, seed, seat, game}`, in a fixed order.

    For a game with many starts, each occurs once and in one split only. A game with few (an empty board, three cards)
    repeats them with other random events and opponents; its splits differ in their seeds. Several games come in turn.
    """
    if split not in SPLITS:
        raise RecipeError(f"hier.environment: textarena has no split {split!r}; it has {', '.join(SPLITS)}.")
    wanted, games = options.pool if split == "train" else options.validation, options.names
    shares = [len(range(place, wanted, len(games))) for place in range(len(games))]
    found = [_of_game(options, game, split, share) for game, share in zip(games, shares, strict=True)]
    tasks = [found[number % len(games)][number // len(games)] for number in range(wanted)]
    return [{**task, "id": f"{task['game']}-{task['id']}"} for task in tasks] if options.games else tasks


def _of_game(options: TextarenaOptions, game: str, split: str, wanted: int) -> list[dict[str, Any]]:
    if not _has_many(options, game):
        seeds = [_seed(options, split, n) for n in range(wanted)]
        return [{"id": f"{split}-{n + 1:05d}", **_task(options, game, seed, n)} for n, seed in enumerate(seeds)]

    def make(draw: int, number: int) -> tuple[str, dict[str, Any]]:
        # The seat alternates with the tasks, not with the draws, so that a pool has equal numbers of each.
        seed = _seed(options, "start", draw)
        return _fingerprint(options, game, seed), _task(options, game, seed, number)

    return draw_tasks(make, split, wanted, game)


def _has_many(options: TextarenaOptions, game: str) -> bool:
    return len({_fingerprint(options, game, _seed(options, "start", draw)) for draw in range(PROBED)}) >= MANY


def _seed(options: TextarenaOptions, name: str, draw: int) -> int:
    return derive(options.seed, DATA_SOURCE, name, draw)


def _task(options: TextarenaOptions, game: str, seed: int, number: int) -> dict[str, Any]:
    known = GAMES.get(family(game))
    return {
        "instruction": known.goal if known is not None else f"play {game} and win",
        "data_source": f"{DATA_SOURCE}_{game}" if options.games else DATA_SOURCE,
        "seed": seed,
        # The environment takes it modulo the number of players.
        "seat": number if options.seat is None else options.seat,
        "game": game,
    }


def _fingerprint(options: TextarenaOptions, game: str, seed: int) -> str:
    settings = json.dumps(dict(options.settings_of(game)), sort_keys=True)
    return _drawn(game, settings, options.players, seed)


# All splits draw the same starts, and generating some boards takes a tenth of a second.
@functools.lru_cache(maxsize=1 << 16)
def _drawn(game: str, settings: str, players: int | None, seed: int) -> str:
    with Chance("start", seed).at_play():
        return anchor(start(game, json.loads(settings), players, seed), GAMES.get(family(game)))
