"""Schedules that keep the statistics of a method: what a step sees, what it leaves behind, and the checkpoint."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from tests.fixtures import rollout_graphs
from tests.unit.training.test_step import make_step, run
from verl_hier.credit.estimate import check_needs
from verl_hier.errors import CreditError, RecipeError
from verl_hier.host.manager import PluginHost
from verl_hier.host.options import build_options
from verl_hier.testing import make_table
from verl_hier.testing.builtin import estimator
from verl_hier_plugins.schedules.epo import EPO, EPOScheduleOptions, smoothing_weight
from verl_hier_plugins.schedules.gdro import GDRO, GDROOptions, GroupWeights
from verl_hier_plugins.schedules.rae import RAE, RAEScheduleOptions

HOST = PluginHost.load({"builtin": True})
MAKE = {
    "gdro": lambda: GDRO(GDROOptions(rate=2.0, history=3, hysteresis=0.1, arms=(1, 2, 3))),
    "epo": lambda: EPO(EPOScheduleOptions()),
    "rae": lambda: RAE(RAEScheduleOptions()),
}
COLUMNS = {"gdro": ["class_weight"], "epo": ["entropy_mean", "smoothing"], "rae": ["own_return", "baseline"]}


def batch(seed):
    """Two tasks of three episodes with two turns each; the tasks keep their numbers from step to step."""
    rng = np.random.default_rng(seed)
    turns = {
        "group": np.repeat([0, 1], 6),
        "episode": np.repeat(np.arange(6), 2),
        "role": np.tile([0, 1], 6),
        "entropy": rng.random(12),
        "reward": rng.choice([0.0, 1.0], 12) * np.tile([0, 1], 6),
    }
    return make_table(turns, episodes={"task": [40, 40, 40, 7, 7, 7]}, names={"role": ("first", "second")})


def step(schedule, seed, number):
    schedule.episodes(number, [40, 7], 2)
    table = batch(seed)
    metrics = schedule.table_ready(table, number)
    if schedule.reads_losses:
        schedule.learned(np.array([0, 0, 1]), np.random.default_rng(seed).normal(size=3), number)
    assert all(key.startswith("hier/") and math.isfinite(value) for key, value in metrics.items())
    return table


@pytest.mark.parametrize("name", MAKE)
def test_a_run_that_is_resumed_sees_what_an_unbroken_one_does(name):
    whole, first = MAKE[name](), MAKE[name]()
    for number in (1, 2, 3):
        step(whole, number, number)
        step(first, number, number)
    state = json.loads(json.dumps(first.state_dict()))
    resumed = MAKE[name]()
    resumed.load_state_dict(state)
    assert resumed.state_dict() == whole.state_dict() != MAKE[name]().state_dict()
    for number in (4, 5):
        expected, found = step(whole, number, number), step(resumed, number, number)
        for column in COLUMNS[name]:
            np.testing.assert_array_equal(found[column], expected[column])


def test_an_estimator_without_its_schedule_is_told_which_one():
    with pytest.raises(CreditError, match=r"'class_weight' .* the schedule provides; .* with `hier.schedule.name`"):
        check_needs(estimator("gdro"), make_table({"reward": [1.0]}).columns())


def test_the_trainer_shows_the_table_to_the_schedule():
    schedule = RAE(RAEScheduleOptions(decay=0.5))
    step_, _, _, metrics = run(rollout_graphs.flat(n=4, seed=2), estimator("rae"), schedule=schedule)
    table = step_.ledger.table
    mean, expected = 0.0, []
    for value in table["episodes.return"]:
        expected.append(mean)
        mean = 0.5 * mean + 0.5 * value
    assert len(set(expected)) > 2
    np.testing.assert_allclose(table["baseline"], np.asarray(expected)[table["episode"]])
    assert metrics["hier/rae/baseline/unknown/agent"] == pytest.approx(mean)


def test_exact_entropies_of_the_trainer_replace_the_estimates():
    graph = rollout_graphs.hierarchical()
    step_, _, _, _ = run(graph, estimator("grpo"), entropy=lambda row: np.full(len(row.mask), 0.75))
    table = step_.ledger.table
    assert set(table["tokens.entropy"][np.asarray(table["trained"])[table["tokens.turn"]]]) <= {0.75, 0.0}
    assert (table["tokens.entropy"] == 0.75).any()


def test_losses_of_rows_under_the_updated_policy():
    graph = rollout_graphs.hierarchical()
    step_, keys, rows = make_step(graph)
    rng = np.random.default_rng(0)
    order = [None, *reversed(range(len(rows)))]
    advantages = [rng.normal(size=len(row.mask)) for row in rows]
    old, new = ([rng.normal(size=len(row.mask)) * 0.3 for row in rows] for _ in range(2))
    columns = {
        "advantages": advantages,
        "old_log_probs": old,
        "log_probs": new,
        "response_mask": [np.array(row.mask, float) for row in rows],
    }
    shown = {name: [np.full(1, 99.0) if i is None else data[i] for i in order] for name, data in columns.items()}
    group, losses = step_.row_losses(["padding" if i is None else keys[i] for i in order], shown, 0.2, 0.28)
    assert group.tolist() == [0] * len(rows)
    for i, row in enumerate(rows):
        terms = []
        for a, p, q, m in zip(advantages[i], old[i], new[i], row.mask, strict=True):
            if m:
                ratio = math.exp(q - p)
                terms.append(max(-a * ratio, -a * min(max(ratio, 0.8), 1.28)))
        assert losses[i] == pytest.approx(sum(terms) / len(terms))


def test_gdro_begins_with_equal_weights_and_follows_the_losses():
    schedule = GDRO(GDROOptions(rate=1.0, exploration=0.0))
    table = batch(1)
    table.episodes["return"] = np.array([1.0, 0, 0, 0, 0, 0])
    schedule.table_ready(table, 1)
    assert set(table["class_weight"]) == {1.0}
    schedule.learned(np.array([0, 1]), np.array([0.5, -0.5]), 1)
    # Task 40 was solved, so it is in another class than task 7 now. Both classes weigh alike until the losses differ.
    schedule.table_ready(table, 2)
    assert schedule.state_dict()["solved"] == {"40": 2, "7": 0}
    schedule.learned(np.array([0, 1]), np.array([1.5, -0.5]), 2)
    schedule.table_ready(table, 3)
    easy, hard = table["class_weight"][0], table["class_weight"][-1]
    # Class 9 has the score 1.5, class 0 the sum 0 - 0.5; the mean weight is 1.
    assert easy / hard == pytest.approx(math.exp(2.0)) and (easy + hard) / 2 == pytest.approx(1.0)


def test_gdro_gives_back_losses_without_their_weights():
    schedule = GDRO(GDROOptions())
    schedule._groups.state.seen, schedule._groups.state.solved = {"40": 1}, {"40": 1}
    schedule._groups.state.sums = {"9": 8.0}
    table = batch(2)
    schedule.table_ready(table, 1)
    heavy, light = table["class_weight"][0], table["class_weight"][-1]
    assert heavy > 1 > light
    schedule.learned(np.array([0, 1]), np.array([0.3 * heavy, 0.4 * light]), 1)
    assert schedule.state_dict()["sums"]["9"] == pytest.approx(8.3)
    assert schedule.state_dict()["sums"]["0"] == pytest.approx(0.4)


def brute_force(groups, classes, budget):
    """Every combination of arms, the closest to the budget and then the likeliest."""
    names = list(dict.fromkeys(classes))
    chances = groups.arm_chances(classes)
    best = None
    for code in range(len(groups.arms) ** len(names)):
        picks = [(code // len(groups.arms) ** i) % len(groups.arms) for i in range(len(names))]
        total = sum(groups.arms[p] * classes.count(name) for p, name in zip(picks, names, strict=True))
        cost = -sum(math.log(chances[name][p]) for p, name in zip(picks, names, strict=True))
        best = min(best, (abs(total - budget), cost)) if best else (abs(total - budget), cost)
    return best


@pytest.mark.parametrize("seed", range(6))
def test_the_budget_of_episodes_is_met_by_the_likeliest_arms(seed):
    rng = np.random.default_rng(seed)
    groups = GroupWeights(GDROOptions(arms=(2, 3, 5), rate=1.0))
    groups.state.arm_scores = {str(c): rng.normal(size=3).tolist() for c in range(3)}
    classes = [str(c) for c in rng.integers(0, 4, 7)]
    budget = int(rng.integers(14, 36))
    chosen = groups.choose(classes, budget)
    chances = groups.arm_chances(classes)
    cost = -sum(math.log(chances[name][groups.arms.index(arm)]) for name, arm in chosen.items())
    total = sum(chosen[name] for name in classes)
    assert (abs(total - budget), pytest.approx(cost)) == brute_force(groups, classes, budget)


def test_arms_become_numbers_of_episodes_of_tasks():
    schedule = GDRO(GDROOptions(arms=(1, 3)))
    assert schedule.episodes(1, [5, 6, 7, 8], 2) in ([1] * 4, [3] * 4)
    assert GDRO(GDROOptions()).episodes(1, [5], 2) is None
    schedule._groups.state.seen, schedule._groups.state.solved = {"5": 1, "6": 1}, {"5": 1, "6": 1}
    assert sum(schedule.episodes(2, [5, 6, 7, 8], 2)) == 8


def test_epo_compares_with_earlier_steps_alone():
    schedule = EPO(EPOScheduleOptions(compare="turn", penalty=0.5, steps=None))
    first, second = batch(0), batch(1)
    metrics = schedule.table_ready(first, 1)
    assert metrics == {"hier/epo/penalty": 0.0, "hier/epo/inside": 1.0, "hier/epo/weight": 1.0}
    assert first["smoothing"].tolist() == [0.0] * 12
    metrics = schedule.table_ready(second, 2)
    means = [first["entropy"][first["turn"] == turn].mean() for turn in (0, 1)]
    np.testing.assert_allclose(second["entropy_mean"], np.asarray(means)[second["turn"]])
    inside = [0.8 * means[t] < h < 1.2 * means[t] for t, h in zip(second["turn"], second["entropy"], strict=True)]
    assert metrics["hier/epo/inside"] == pytest.approx(np.mean(inside))
    assert metrics["hier/epo/penalty"] == pytest.approx(0.5 * (1 - np.mean(inside)))


def test_epo_may_wait_for_later_turns():
    schedule = EPO(EPOScheduleOptions(compare="turn", steps=None, from_turn=1))
    first, second = batch(0), batch(1)
    schedule.table_ready(first, 1)
    schedule.table_ready(second, 2)
    assert second["smoothing"].tolist() == second["turn"].tolist()


def test_the_weight_of_the_smoothing_falls():
    weights = [smoothing_weight(step_, 100) for step_ in range(101)]
    assert weights[0] == 1 and weights[50] == pytest.approx(1 - 0.2 * (1 - math.exp(-2)))
    assert weights[51] < 0.8 and weights[100] == pytest.approx(0.8 * math.exp(-3))
    assert weights == sorted(weights, reverse=True) and smoothing_weight(999, 100) == weights[100]
    assert smoothing_weight(0, 1) == 1


def test_rae_subtracts_before_it_updates():
    turns = {"episode": [0, 1], "reward": [1.0, -1.0]}
    table = make_table(turns)
    schedule = RAE(RAEScheduleOptions())
    schedule.table_ready(table, 1)
    np.testing.assert_allclose(table["own_return"] - table["baseline"], [1.0, -1.05])
    assert schedule.state_dict() == {"means": {"0/0": pytest.approx(-0.0025)}}


def test_rae_keeps_roles_and_sources_apart():
    turns = {"episode": [0, 0, 1, 1], "role": [0, 1, 0, 1], "reward": [1.0, -1.0, 0.5, 2.0]}
    table = make_table(
        turns, episodes={"source": [0, 1]}, names={"role": ("black", "white"), "source": ("go", "chess")}
    )
    schedule = RAE(RAEScheduleOptions(score="role", decay=0.5, reward_scale=2.0))
    schedule.table_ready(table, 1)
    assert table["own_return"].tolist() == [2.0, -2.0, 1.0, 4.0] and not table["baseline"].any()
    assert schedule.state_dict()["means"] == {"go/black": 1.0, "go/white": -1.0, "chess/black": 0.5, "chess/white": 2.0}


def test_untrained_episodes_move_no_mean():
    turns = {"episode": [0, 1], "reward": [5.0, 1.0], "trained": [False, True]}
    schedule = RAE(RAEScheduleOptions(decay=0.5))
    schedule.table_ready(make_table(turns), 1)
    assert schedule.state_dict() == {"means": {"0/0": 0.5}}


@pytest.mark.parametrize(
    ("name", "options", "told"),
    [
        ("gdro", {"edges": [0.5, 0.2]}, "edges must rise"),
        ("gdro", {"bins": 1}, "bins must be at least 2"),
        ("gdro", {"arms": [2, 2]}, "arms must be different"),
        ("gdro", {"focus": {"low": 1.0}}, "focus must map"),
        ("epo", {"least": 2.0}, "least must be between"),
    ],
)
def test_options_that_cannot_work_are_refused(name, options, told):
    with pytest.raises(RecipeError, match=f"hier.schedule: '{name}' refuses these options: {told}"):
        build_options(HOST.spec("schedule", name), options)


def test_gdro_gives_a_further_task_what_its_class_has():
    schedule = GDRO(GDROOptions(arms=(1, 2, 3)))
    schedule._groups.note(["1", "2", "3"], [True, True, False])
    counts = schedule.episodes(1, [1, 2, 3], 2)
    assert counts is not None and sum(counts) == 6
    assert schedule.episodes(1, [4], 2) == [counts[2]] and schedule.episodes(1, [1], 2) == [counts[0]]
