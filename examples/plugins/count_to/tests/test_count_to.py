import count_to as plugin
from verl_hier.testing import check_environment


def test_kit() -> None:
    check_environment(plugin.ENVIRONMENT)


def test_reaching_the_goal_is_rewarded() -> None:
    environment = plugin.CountTo(plugin.Options())
    environment.reset({"start": 1, "goal": 3}, seed=0)
    steps = [environment.step(action) for action in ("up", "down", "up", "up")]
    assert [step.reward for step in steps] == [0.0, 0.0, 0.0, 1.0]
    assert [step.done for step in steps] == [False, False, False, True]
