"""What `verl-hier env repository --baselines` measures: each difficulty."""

from verl_hier.environments.baselines import Baselines
from verl_hier_plugins.environments.repository.options import HIGHEST, RepositoryOptions


def baselines() -> Baselines:
    """Constants are the solutions of other tasks: no single action wins one."""
    return Baselines({f"difficulty {level}": RepositoryOptions(level) for level in range(HIGHEST + 1)})
