import baseline_gap as plugin
from verl_hier.credit.estimate import estimate
from verl_hier.testing.estimator import check_estimator, make_table


def test_kit() -> None:
    check_estimator(plugin.ESTIMATOR)


def test_worked_example() -> None:
    table = make_table({"episode": [0, 0, 1, 1], "reward": [0.0, 1.0, 0.5, 0.0]})
    assert estimate(plugin.ESTIMATOR, table).values.tolist() == [0.0, 0.0, -0.5, -1.0]
