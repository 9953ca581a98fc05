"""What an estimator says about a credit is what it added up."""

from __future__ import annotations

import numpy as np
import pytest

from tests.fixtures.viewed_run import METHODS, rolled_out
from verl_hier.credit import Credit, group_advantage, group_ids, turn_credit
from verl_hier.credit.explain import explain, explaining, term
from verl_hier.graph.columnar.encode import encode
from verl_hier.graph.columnar.table import table_of
from verl_hier.host.specs import EstimatorSpec, NoOptions
from verl_hier.testing.builtin import estimator, full_credit

VARIANTS = [
    *((name, {}) for name in METHODS),
    ("himac", {"micro_group": "group", "scale": "none"}),
    ("gigpo", {"omega": 0.3, "norm": "mean_std_norm"}),
    ("gigpo", {"format_penalty": 0.1}),
    *(("tree_grpo", {"variant": variant}) for variant in ("inter", "tree_inner", "tree_2norm")),
    *(("tree_grpo", {"shared": shared}) for shared in ("average", "owner")),
    ("treerl", {"state_value": False, "inherit": False, "damping": "none"}),
    ("treerl", {"centre": "step"}),
    ("arpo", {"attribution": "hard", "weight_by": "token"}),
]


@pytest.fixture(scope="module")
def tables():
    """Tables of blueprints with their executions, and of trees."""
    return {
        hierarchical: table_of(encode([rolled_out(number, 1, hierarchical) for number in range(4)]))[0]
        for hierarchical in (True, False)
    }


@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_the_terms_are_the_credit_bit_by_bit(tables, name, options):
    spec = estimator(name)
    table = tables[name == "himac"]
    credit, terms = explain(spec, table, spec.options(**options))
    assert terms and all(each.name for each in terms)
    silent = full_credit(name, table, **options)
    assert np.array_equal(credit.values, silent.values) and credit.per == silent.per
    assert np.abs(np.asarray(credit.values)).sum() > 0
    total = sum(each.weight * each.values for each in terms)
    trained = np.asarray(table["trained"], bool)
    if terms[0].unit == "turn":
        assert np.array_equal(total[trained], np.asarray(credit.values)[trained])
    elif credit.per == "step":
        kept = trained[table.step_turn]
        assert np.array_equal(total[table.step_episode][kept], np.asarray(credit.values)[kept])
    assert any(each.comparisons for each in terms)


@pytest.mark.parametrize("name", METHODS)
def test_each_comparison_has_the_arithmetic_of_its_results(tables, name):
    _, terms = explain(estimator(name), tables[name == "himac"])
    checked = 0
    for found in (each for one in terms for each in one.comparisons):
        by_group = (found.scores - found.centre) * found.factor
        counted = (found.votes > 0) & (found.factor != 0)
        np.testing.assert_allclose(found.result[counted], by_group[counted], rtol=1e-12, atol=1e-12)
        for key in np.unique(found.keys[counted]):
            mine = counted & (found.keys == key)
            mean = np.average(found.scores[mine], weights=found.votes[mine])
            np.testing.assert_allclose(found.centre[mine], mean, rtol=1e-12, atol=1e-12)
        checked += int(counted.sum())
    assert checked


def test_the_spread_of_a_comparison_is_the_deviation_of_its_group():
    scores, keys = np.array([0.0, 1.0, 3.0, 7.0]), group_ids(np.array([0, 0, 1, 1]))
    with explaining() as record:
        found = group_advantage(scores, keys)
    (comparison,) = record.comparisons
    np.testing.assert_allclose(comparison.spread, np.std([[0, 1], [3, 7]], axis=1, ddof=1).repeat(2))
    np.testing.assert_allclose(comparison.factor, 1 / (comparison.spread + 1e-6))
    assert np.array_equal(comparison.result, found) and comparison.rule["scale"] == "sample"


def test_an_estimator_that_names_other_terms_than_it_adds_is_not_believed(tables):
    def advantage(table, options):
        return Credit(2 * term("half of it", np.asarray(table["return"], np.float64)))

    credit, terms = explain(EstimatorSpec("twice", advantage, NoOptions, requires=("return",)), tables[False])
    assert terms == [] and credit.values.any()


def test_nothing_is_kept_when_nobody_asks(tables):
    with explaining() as record:
        pass
    full_credit("gigpo", tables[False])
    assert record.terms == [] and record.comparisons == []


def test_an_estimator_without_terms_gives_none(tables):
    credit, terms = explain(estimator("grpo"), tables[False])
    assert terms == [] and turn_credit(tables[False], credit).any()
