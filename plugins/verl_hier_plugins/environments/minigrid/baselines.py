"""What `verl-hier env minigrid --baselines` measures: a small and a large room of BabyAI."""

from verl_hier.environments.baselines import Baselines
from verl_hier_plugins.environments.minigrid.options import MinigridOptions

TASKS = 40
LEVELS = ("BabyAI-GoToLocalS5N2-v0", "BabyAI-GoToLocal-v0")


def baselines() -> Baselines:
    """Each world alone."""
    return Baselines({level: MinigridOptions(levels=(level,), pool=TASKS) for level in LEVELS})
