"""What `verl-hier env alfworld --baselines` measures: each type of goal."""

from verl_hier.environments.baselines import TASKS, Baselines
from verl_hier_plugins.environments.alfworld.options import GOAL_TYPES, AlfworldOptions


def baselines() -> Baselines:
    """Generated worlds of one type of goal each."""
    return Baselines({kind: AlfworldOptions(goal_types=(kind,), pool=TASKS) for kind in GOAL_TYPES})
