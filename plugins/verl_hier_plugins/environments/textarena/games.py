"""The games that this plugin knows: their moves, state, board in words, and solution.

Other games can be played as well: their moves are taken from their messages, and their whole content is their state.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from verl_hier_plugins.environments.textarena import solvers
from verl_hier_plugins.environments.textarena.solvers import STEPS


@dataclass(frozen=True)
class Game:
    """One family of games.

    Attributes:
        goal: the task in words.
        words: every move that the game can understand.
        moves: the moves that it does not refuse now, for the current player.
        state: everything that the future depends on, JSON-able, without a step count or history.
        rows: the board for one player; each row as words.
        solve: for puzzles, the shortest solution from the current state, or None when there is none.
        good: for games of several players, sensible moves of the current player.
        several: whether a turn may be several moves.
    """

    goal: str
    words: tuple[str, ...]
    moves: Callable[[Any], list[str]]
    state: Callable[[Any], Any]
    rows: Callable[[Any, int], list[str]]
    solve: Callable[[Any], list[str] | None] | None = None
    good: Callable[[Any], list[str]] | None = None
    several: bool = False


def _lake_moves(game: Any) -> list[str]:
    row, column = game.state.game_state["player_pos"]
    return [
        name for name, (down, right) in STEPS.items() if 0 <= row + down < game.size and 0 <= column + right < game.size
    ]


def _lake_rows(game: Any, player: int) -> list[str]:
    state = game.state.game_state
    rows = [[cell.lower().replace(" ", "f") for cell in cells] for cells in state["grid"]]
    row, column = state["player_pos"]
    rows[row][column] = "p"
    return [" ".join(cells) for cells in rows]


def _sokoban_moves(game: Any) -> list[str]:
    return [name for name in STEPS if not game._would_collide_with_wall(name)]


_SOKOBAN_CELLS = ("w", "f", "t", "d", "b", "p")
"""Wall, floor, target, box on a target (done), box, player; in the order of TextArena's numbers."""


def _sokoban_rows(game: Any, player: int) -> list[str]:
    rows = [[_SOKOBAN_CELLS[cell] for cell in row] for row in game.room_state]
    row, column = game.player_position
    if game.room_fixed[row, column] == 2:
        # TextArena's own board hides a target under the player.
        rows[row][column] = "q"
    return [" ".join(cells) for cells in rows]


def _hanoi_moves(game: Any) -> list[str]:
    towers = game.state.game_state["towers"]
    top = {name: disks[-1] if disks else None for name, disks in towers.items()}
    found = []
    for source, disk in top.items():
        for target, below in top.items():
            # TextArena also accepts a move of a disk to its own place, which is useless.
            if source != target and disk is not None and (below is None or below > disk):
                found.append(f"{source} {target}".lower())
    return found


def _hanoi_rows(game: Any, player: int) -> list[str]:
    towers = game.state.game_state["towers"]
    return [" ".join([name.lower(), *map(str, disks)]) for name, disks in towers.items()]


def _tic_tac_toe_moves(game: Any) -> list[str]:
    board = game.state.game_state["board"]
    return [str(number) for number, (row, column) in game.cell_mapping.items() if board[row][column] == ""]


def _tic_tac_toe_rows(game: Any, player: int) -> list[str]:
    return [" ".join(cell.lower() or "e" for cell in row) for row in game.state.game_state["board"]]


LINES = ("012", "345", "678", "036", "147", "258", "048", "246")
"""Three squares in a row on the board of tic-tac-toe."""


def _tic_tac_toe_good(game: Any) -> list[str]:
    """The moves that win; else those that keep the other from winning; else the centre; else any."""
    board, moves = game.state.game_state["board"], _tic_tac_toe_moves(game)
    cells = {str(number): board[row][column] for number, (row, column) in game.cell_mapping.items()}
    own = "X" if game.state.current_player_id == 1 else "O"
    for sign in (own, {"X": "O", "O": "X"}[own]):
        lines = [line for line in LINES if [cells[square] for square in line].count(sign) == 2]
        ends = sorted({square for line in lines for square in line if square in moves})
        if ends:
            return ends
    return ["4"] if "4" in moves else moves


def _connect_four_moves(game: Any) -> list[str]:
    return [str(column) for column, cell in enumerate(game.state.game_state["board"][0]) if cell == "."]


def _connect_four_rows(game: Any, player: int) -> list[str]:
    return [" ".join(cell.lower().replace(".", "e") for cell in row) for row in game.state.game_state["board"]]


def _kuhn_moves(game: Any) -> list[str]:
    tree = game.state.game_state["current_legal_action_tree"]
    return list(tree) if isinstance(tree, Mapping) else []


def _kuhn_state(game: Any) -> Any:
    state = game.state.game_state
    known = ("pot", "player_chips", "current_round", "starting_player", "player_cards", "current_legal_action_tree")
    return [state.get(name) for name in known]


def _kuhn_rows(game: Any, player: int) -> list[str]:
    state = game.state.game_state
    card = game._rank_to_str(state["player_cards"][player]).lower()
    asked = " ".join(_kuhn_moves(game)) if player == game.state.current_player_id else ""
    return [f"round {state['current_round']}", f"card {card}", f"you can {asked}".strip()]


_STRENGTH = {"J": 0, "Q": 1, "K": 2}


def _kuhn_good(game: Any) -> list[str]:
    """The king goes along with everything, the jack with nothing, the queen does not bet and sometimes calls."""
    state, moves = game.state.game_state, _kuhn_moves(game)
    strength = _STRENGTH[game._rank_to_str(state["player_cards"][game.state.current_player_id])]
    wanted = (("check", "fold"), ("check", "call", "fold"), ("bet", "call"))[strength]
    return [move for move in moves if move in wanted]


def _board(game: Any) -> Any:
    return game.state.game_state["board"]


WALKS = tuple(STEPS)
TOWERS = tuple(f"{source} {target}" for source in "abc" for target in "abc")
SQUARES = tuple(map(str, range(9)))

GAMES: dict[str, Game] = {
    "FrozenLake": Game(
        "reach the goal g and avoid the holes h",
        WALKS,
        _lake_moves,
        lambda game: [game.state.game_state["grid"], game.state.game_state["player_pos"]],
        _lake_rows,
        solvers.frozen_lake,
    ),
    "Sokoban": Game(
        "push every box onto a target",
        WALKS,
        _sokoban_moves,
        lambda game: [game.room_fixed.tolist(), game.room_state.tolist()],
        _sokoban_rows,
        solvers.sokoban,
    ),
    "TowerOfHanoi": Game(
        "move all disks to tower c",
        TOWERS,
        _hanoi_moves,
        lambda game: game.state.game_state["towers"],
        _hanoi_rows,
        solvers.tower_of_hanoi,
        several=True,
    ),
    "TicTacToe": Game(
        "get three in a row", SQUARES, _tic_tac_toe_moves, _board, _tic_tac_toe_rows, good=_tic_tac_toe_good
    ),
    "ConnectFour": Game("connect four discs", SQUARES, _connect_four_moves, _board, _connect_four_rows),
    "KuhnPoker": Game(
        "win chips", ("check", "bet", "fold", "call"), _kuhn_moves, _kuhn_state, _kuhn_rows, good=_kuhn_good
    ),
}


def anchor(game: Any, known: Game | None) -> str:
    """`player <current player> | <hash of the state>`; the same in every process."""
    state = known.state(game) if known is not None else vars(game)
    digest = hashlib.blake2b(repr(canonical(state)).encode(), digest_size=8).hexdigest()
    return f"player {game.state.current_player_id} | {digest}"


_LISTED = re.compile(r"(?:available|valid|legal) (?:actions|moves)[^:\n]*:(.*)", re.IGNORECASE)
BRACKETS = re.compile(r"\[([^\[\]]+)\]")


def listed_moves(text: str) -> list[str]:
    """Moves that a game's message lists: `Available Moves: '[4]', '[5]'` gives `4` and `5`."""
    found = _LISTED.search(text)
    return list(dict.fromkeys(BRACKETS.findall(found.group(1)))) if found else []


_NO_STATE = frozenset(("observations", "logs", "step_info", "turn", "game_info", "error_count", "error_allowance"))
"""Attributes that TextArena keeps about an episode but that are not part of the game's state."""


def canonical(value: Any, around: tuple[int, ...] = ()) -> Any:
    """Any content of a game in a form whose text is equal for equal states in every process."""
    if isinstance(value, str | int | float | bool | None):
        return value
    if id(value) in around:
        return "itself"
    around = (*around, id(value))
    if isinstance(value, Mapping):
        held = ((str(key), item) for key, item in value.items() if key not in _NO_STATE)
        return sorted((key, repr(canonical(item, around))) for key, item in held)
    if isinstance(value, list | tuple):
        return [canonical(item, around) for item in value]
    if isinstance(value, set | frozenset):
        return sorted(repr(canonical(item, around)) for item in value)
    if hasattr(value, "tolist"):
        return value.tolist()
    if callable(value):
        return getattr(value, "__name__", type(value).__name__)
    return canonical(vars(value), around) if hasattr(value, "__dict__") else str(value)
