"""What `verl-hier env textworld_express --baselines` measures: each game, with the numbers that it has by itself."""

from typing import get_args

from verl_hier.environments.baselines import Baselines
from verl_hier_plugins.environments.textworld_express.options import Game, TextworldExpressOptions

TASKS = 40
"""A world of the larger games takes a tenth of a second to make."""


def baselines() -> Baselines:
    """Each game alone."""
    return Baselines({game: TextworldExpressOptions(games=(game,), pool=TASKS) for game in get_args(Game)})
