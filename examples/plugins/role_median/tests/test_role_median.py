import numpy as np
from role_median import ESTIMATOR, Options, hier_metrics
from verl_hier.credit.estimate import estimate
from verl_hier.testing.estimator import check_estimator, make_table


def test_kit() -> None:
    check_estimator(ESTIMATOR)
    check_estimator(ESTIMATOR, Options(scale="none", skip_short=2), timing=False)


def test_worked_example() -> None:
    table = make_table({"reward": [0.0, 0.4, 1.0], "n_tokens": [1, 5, 5]})
    credit = estimate(ESTIMATOR, table, Options(scale="none", skip_short=1))
    np.testing.assert_allclose(credit.values, [-0.4, 0.0, 0.6])
    assert credit.weight.tolist() == [0, 1, 1]
    assert hier_metrics(table, credit, 0) == {"hier/role_median/kept_share": 2 / 3}
