"""Exchange of tasks without a signal: which of them are dropped, how many are drawn, and which are trained."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fixtures import rollout_graphs
from verl_hier.errors import RecipeError, RolloutError
from verl_hier.graph.success import WITHOUT_WORD
from verl_hier.recipe.schema import HierConfig
from verl_hier.training.options import RefillOptions
from verl_hier.training.refill import Group, StepTasks, most_tasks, scores_of

PARTS = {kind: {"name": "x"} for kind in ("environment", "worker", "sampler", "estimator")}


def group(*scores: float, rows: int = 1) -> Group:
    return Group(list(scores), rows, 10)


@pytest.mark.parametrize(
    ("options", "found", "reason"),
    [
        ({}, group(0.0, 1.0), None),
        ({}, group(1.0, 1.0), "std_above"),
        # The mean of three times 0.1 is not 0.1, so that their standard deviation would not be 0.
        ({}, group(0.1, 0.1, 0.1), "std_above"),
        ({}, group(1.0), None),
        ({}, group(), None),
        ({}, group(0.0, 1.0, rows=0), "no_rows"),
        ({"std_above": 0.5}, group(0.0, 1.0), "std_above"),
        ({"std_above": 0.49}, group(0.0, 1.0), None),
        ({"std_above": None}, group(1.0, 1.0), None),
        ({"mean_within": (0.2, 0.8)}, group(0.0, 0.0, 1.0, 1.0), None),
        ({"mean_within": (0.2, 0.8)}, group(0.0, 1.0, 1.0, 1.0, 1.0, 1.0), "mean_within"),
    ],
)
def test_what_is_dropped(options, found, reason):
    assert found.dropped_by(RefillOptions(limit=2, **options)) == reason


def test_scores_are_those_of_trained_episodes():
    graph = rollout_graphs.flat()
    episodes = list(graph.complete())
    episodes[0].trained = False
    assert scores_of(graph, "return") == [episode.ret for episode in episodes[1:]]
    episodes[1].reward_info["format"] = 0.5
    assert scores_of(graph, "format") == [0.5]
    with pytest.raises(
        RecipeError, match=r"hier\.refill\.score: no episode of the task reports 'f1'; use return or fo"
    ):
        scores_of(graph, "f1")
    described = Group.of(graph, 3, "return")
    assert described.rows == 3 and described.tokens == sum(len(node.action) for node in graph.nodes) > 0


def test_an_episode_without_a_word_was_lost_where_its_world_says_won():
    graph = rollout_graphs.flat()
    for episode, success in zip(graph.complete(), (True, None), strict=True):
        episode.success = success
    assert scores_of(graph, "success") == [1.0]
    graph.counts[WITHOUT_WORD] = 1
    assert scores_of(graph, "success") == [1.0, 0.0]


def test_the_tasks_of_a_step_are_those_that_are_finished():
    step = StepTasks(RefillOptions(limit=2), 2, 4)
    assert "a" not in step
    step.finish("a", group(0.0, 1.0))
    assert "a" in step and "b" not in step


def play(options: RefillOptions, tasks: int, pool: list[Group], seed: int) -> tuple[int, list[int]]:
    """Tasks of a step that are finished in a random order: how many were drawn, and which are trained."""
    order = random.Random(seed)
    step, drawn, running = StepTasks(options, tasks, len(pool)), tasks, list(range(tasks))
    while True:
        further = step.missing(drawn)
        running += range(drawn, drawn + further)
        drawn += further
        if not running:
            return drawn, [int(task) for task in step.choose([str(number) for number in range(drawn)])]
        for task in order.sample(running, order.randint(1, len(running))):
            running.remove(task)
            step.finish(str(task), pool[task])


def reference(options: RefillOptions, tasks: int, pool: list[Group]) -> tuple[int, list[int]]:
    """The same, one task after the other."""
    most = max(tasks, min(math.floor(options.limit * tasks), len(pool)))
    wanted = math.ceil(tasks / options.best_share)
    drawn, passed = 0, []
    while drawn < tasks or (len(passed) < wanted and drawn < most):
        passed += [drawn] if len(set(pool[drawn].scores)) > 1 else []
        drawn += 1
    if not passed:
        return drawn, list(range(tasks))
    keep = min(tasks, len(passed) - int(len(passed) * (1 - options.best_share)))
    best = sorted(passed, key=lambda task: np.mean(pool[task].scores))[len(passed) - keep :]
    return drawn, sorted(best)


pools = st.lists(st.lists(st.sampled_from([0.0, 1.0]), min_size=2, max_size=4), min_size=6, max_size=30)


@given(
    pools, st.integers(1, 6), st.sampled_from([(1, 1.0), (1.5, 1.0), (4, 1.0), (4, 0.5), (2, 0.5)]), st.integers(0, 99)
)
def test_the_order_of_arrival_decides_nothing(scores, tasks, limits, seed):
    pool = [group(*found) for found in scores]
    options = RefillOptions(limit=limits[0], best_share=limits[1])
    assert play(options, tasks, pool, seed) == reference(options, tasks, pool)


@pytest.mark.parametrize("within", [(0.25, 0.75), (0.5, 0.5), (0.75, 0.25), (0.5,), (0.25, 0.5, 0.75)])
def test_means_lie_within_two_numbers_of_which_the_second_is_no_smaller(within):
    if len(within) == 2 and within[0] <= within[1]:
        options = RefillOptions(limit=2, std_above=None, mean_within=within)
        assert group(0.5, 0.5).dropped_by(options) is None and group(0.8).dropped_by(options) == "mean_within"
    else:
        with pytest.raises(ValueError, match=r"mean_within must be two numbers, .*, got \["):
            RefillOptions(limit=2, mean_within=within)


def test_a_step_may_sample_as_many_tasks_as_the_best_share_needs():
    for limit, share in ((1.0, 1.0), (2.0, 0.5), (1 / 0.3, 0.3), (3.0, 0.5)):
        RefillOptions(limit=limit, best_share=share)
    with pytest.raises(ValueError, match=r"with best_share 0\.5 limit must be 2 or more, got 1\.999"):
        RefillOptions(limit=1.999, best_share=0.5)


def test_no_more_is_sampled_than_the_limit_allows_and_than_is_there():
    flat = [group(1.0, 1.0)] * 20
    assert play(RefillOptions(limit=3), 4, flat, 0) == (12, [0, 1, 2, 3])
    assert play(RefillOptions(limit=3), 8, flat[:10], 0) == (10, list(range(8)))
    assert most_tasks(RefillOptions(limit=1), 7) == 7


def test_a_step_can_refuse_to_train_fewer_tasks():
    options = RefillOptions(limit=2, at_limit="raise")
    assert play(options, 2, [group(1.0, 0.0)] * 4, 0) == (2, [0, 1])
    with pytest.raises(
        RolloutError, match=r"1 of the 4 tasks that this step sampled passed hier\.refill, and it trains 2"
    ):
        play(options, 2, [group(1.0, 0.0), *[group(1.0, 1.0)] * 3], 0)


def test_where_nothing_passes_the_first_tasks_with_rows_are_trained():
    assert play(RefillOptions(limit=2), 2, [group(rows=0), *[group(1.0, 1.0)] * 3], 0) == (4, [1, 2])


def test_metrics_count_what_was_done():
    step = StepTasks(RefillOptions(limit=2), 2, 10)
    for task, found in {"a": group(0.0, 1.0), "b": group(1.0, 1.0), "c": group(rows=0), "d": group(0.0, 0.0)}.items():
        step.finish(task, found)
    kept = step.choose("abcd")
    assert kept == ["a"]
    assert step.metrics("abcd", kept) == {
        "hier/refill/tasks": 4,
        "hier/refill/batches": 2,
        "hier/refill/dropped": 3,
        "hier/refill/dropped_tokens": 30,
        "hier/refill/at_limit": 1,
        "hier/refill/score_mean": 0.5,
        "hier/refill/dropped_by/no_rows": 1,
        "hier/refill/dropped_by/std_above": 2,
    }


@pytest.mark.parametrize(
    ("block", "sentence"),
    [
        ({}, r"^hier\.refill: hier\.refill needs limit; add `hier\.refill\.limit: …`\.$"),
        ({"std_above": 0.1}, r"^hier\.refill: .* needs limit"),
        ({"limit": 0.5}, r"^hier\.refill\.limit: must be at least 1, got 0\.5\.$"),
        (
            {"limit": 1.5, "best_share": 0.5},
            r"^hier\.refill: .*limit must be 2 or more, got 1\.5$",
        ),
        (
            {"limit": 2, "mean_within": [0.9, 0.1]},
            r"^hier\.refill: .*two numbers, the second no smaller than the first, got \[0\.9, 0\.1\]$",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(block, sentence):
    with pytest.raises(RecipeError, match=sentence):
        HierConfig.of({"hier": {**PARTS, "refill": block}})
