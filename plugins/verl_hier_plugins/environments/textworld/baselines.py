"""What `verl-hier env textworld --baselines` measures: quests of some lengths."""

from verl_hier.environments.baselines import TASKS, Baselines
from verl_hier_plugins.environments.textworld.options import TextworldOptions


def baselines() -> Baselines:
    """Generated worlds, in short observations, which need no compiler."""
    return Baselines(
        {
            f"quest of {length}": TextworldOptions(quest_length=length, observation="short", pool=TASKS)
            for length in (1, 2, 3, 5)
        }
    )
