"""The options of TextArena in a recipe: the schema of `hier.environment` when its name is `textarena`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from verl_hier.host.constraints import Count, CountOrZero, NonNegative

SHORT = ("FrozenLake", "Sokoban", "TowerOfHanoi", "TicTacToe", "ConnectFour", "KuhnPoker")
"""Games whose moves and boards this plugin knows; `games.GAMES` has an entry for each."""


def family(game: str) -> str:
    """`FrozenLake` for `FrozenLake-v0-hardcore`."""
    return game.partition("-v")[0]


@dataclass(frozen=True)
class TextarenaOptions:
    """Options of the `textarena` environment."""

    game: str = "FrozenLake-v0"
    """TextArena's name of the game, with its variant: `Sokoban-v0`, `FrozenLake-v0-hardcore`, `KuhnPoker-v0-short`."""
    games: tuple[str, ...] = ()
    """Further games with their variants, whose tasks come in turn with those of `game`; each game is then a data source
    of its own, `textarena_KuhnPoker-v0-short`."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of the class of `game` that override those of the variant: `{size: 5, num_holes: 6}`."""
    players: Count | None = None
    """Players of the game; null takes one where the game can be played alone, else two."""
    opponent: Literal["none", "random"] = "none"
    """`none`: every player is a policy, and `info["player"]` is the current one. `random`: one player is a policy, the
    others make random possible moves."""
    seat: CountOrZero | None = None
    """The player that the policy is when the others are random; null alternates between tasks."""
    observation: Literal["full", "short"] = "full"
    """`full` gives TextArena's messages; `short` only the board, one word for each cell."""
    board: Literal["always", "changes"] = "always"
    """`changes` shows the whole board once, then only the rows that changed since the player last saw it."""
    rules: bool = True
    """Begin a player's first observation with the game's rules; `{rules}` gives them to prompts in any case."""
    reward: Literal["score", "won"] = "score"
    """`score` is TextArena's own reward at the end, which pays an unsolved puzzle for its progress; `won` is 1 or 0."""
    pool: Count = 150
    """Tasks in the training split."""
    validation: Count = 40
    """Tasks in each held-out split."""
    seed: int = 0
    """Seed of the task pools."""
    max_steps: Count = 50
    """Actions of all policies together after which an episode is truncated."""
    invalid_penalty: NonNegative = 0.02
    """Subtracted from the reward of an action that the game refuses."""

    def __post_init__(self) -> None:
        if self.observation == "short" and any(family(name) not in SHORT for name in self.names):
            raise ValueError(f"observation: short knows the boards of {', '.join(SHORT)} only; take `full`")
        if self.seat is not None and self.opponent == "none":
            raise ValueError("seat needs `opponent: random`; without opponents every seat is a policy")
        if len(set(self.names)) < len(self.names):
            raise ValueError(f"games names a game twice, or `game` again: {', '.join(self.names)}")

    @property
    def names(self) -> tuple[str, ...]:
        """All games."""
        return (self.game, *self.games)

    def settings_of(self, game: str) -> Mapping[str, Any]:
        """Keyword arguments of the class of a game."""
        return self.settings if game == self.game else {}
