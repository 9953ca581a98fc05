import count_up as plugin
from verl_hier.testing.environment import check_environment


def test_kit() -> None:
    check_environment(plugin.ENVIRONMENT)


def test_counting_to_the_goal_is_rewarded() -> None:
    task = plugin.tasks(plugin.Options(), "train")[0]
    environment = plugin.CountUp(plugin.Options())
    steps = [environment.reset(task, seed=0), *(environment.step("up") for _ in range(task["goal"]))]
    assert steps[-1].done and steps[-1].reward == 1.0
