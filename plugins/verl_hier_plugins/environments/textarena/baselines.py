"""What `verl-hier env textarena --baselines` measures: the games whose moves this plugin knows."""

from verl_hier.environments.baselines import Baselines
from verl_hier_plugins.environments.textarena.options import TextarenaOptions

TASKS = 40
"""Their moves are slow."""
PUZZLES, GAMES = ("FrozenLake-v0", "Sokoban-v0", "TowerOfHanoi-v0"), ("TicTacToe-v0", "ConnectFour-v0", "KuhnPoker-v0")


def baselines() -> Baselines:
    """Puzzles alone, games against a random opponent."""
    return Baselines(
        {
            **{game: TextarenaOptions(game, pool=TASKS) for game in PUZZLES},
            **{game: TextarenaOptions(game, opponent="random", pool=TASKS) for game in GAMES},
        }
    )
