"""What `verl-hier env scienceworld --baselines` measures: experiments in which something has to be found."""

from verl_hier.environments.baselines import Baselines
from verl_hier_plugins.environments.scienceworld.options import ScienceworldOptions

EXPERIMENTS = ("find-living-thing", "find-non-living-thing", "find-plant", "find-animal")
TASKS = 20


def baselines() -> Baselines:
    """Each experiment alone; its possible actions are too many to be listed at each step."""
    return Baselines({name: ScienceworldOptions(experiments=(name,), pool=TASKS, max_steps=20) for name in EXPERIMENTS})
