"""What `verl-hier env shop --baselines` measures: generated catalogues by their level."""

from verl_hier.environments.baselines import TASKS, Baselines
from verl_hier_plugins.environments.shop.options import ShopOptions


def baselines() -> Baselines:
    """Policies that search for what they are told, and never look at what they find."""
    return Baselines(
        {"tiny": ShopOptions(level="tiny", pool=TASKS), "small": ShopOptions(level="small", pool=TASKS)},
        forms=("search[{}]", "click[{}]"),
    )
