"""What `verl-hier env search --baselines` measures: generated questions by the number of their hops."""

from verl_hier.environments.baselines import TASKS, Baselines
from verl_hier_plugins.environments.search.options import SearchOptions


def baselines() -> Baselines:
    """Answers without a search."""
    return Baselines(
        {f"hops {hops}": SearchOptions(hops=hops, pool=TASKS) for hops in (1, 2, 3)},
        forms=("answer {}",),
        answers=lambda task: [f"answer {answer}" for answer in task["answers"]],
    )
