"""What `verl-hier env sokoban --baselines` measures: boards of each level."""

from verl_hier.environments.baselines import TASKS, Baselines
from verl_hier_plugins.environments.sokoban.levels import SIZES
from verl_hier_plugins.environments.sokoban.options import SokobanOptions


def baselines() -> Baselines:
    """Each level alone."""
    return Baselines({level: SokobanOptions(level=level, pool=TASKS) for level in SIZES})
