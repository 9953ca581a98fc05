"""What `verl-hier env bug_reproduction --baselines` measures: each difficulty."""

from verl_hier.environments.baselines import Baselines
from verl_hier_plugins.environments.bug_reproduction.cases import right_tests
from verl_hier_plugins.environments.bug_reproduction.options import HIGHEST, BugReproductionOptions


def baselines() -> Baselines:
    """Tests that are not thought of for the bug at hand."""
    return Baselines(
        {f"difficulty {difficulty}": BugReproductionOptions(difficulty) for difficulty in range(HIGHEST + 1)},
        forms=("test {}", "test f({0}) == {0}"),
        answers=lambda task: [f"test {test}" for test in right_tests(task["function"], task["values"], task["bug"])],
    )
