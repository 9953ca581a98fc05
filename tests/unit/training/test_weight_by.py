"""Every unit that `weight_by` names works in every estimator that has it, and in the loss, on rolled-out graphs."""

from collections import Counter
from dataclasses import fields
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings

from tests.fixtures import rollout_graphs
from verl_hier.credit import WeightBy, episode_votes, turn_keys, turn_votes
from verl_hier.credit.estimate import estimate
from verl_hier.graph import build_table, graph_rows, number_turns
from verl_hier.testing import builtin_estimators
from verl_hier.testing.estimator import random_table
from verl_hier.training.options import GuardOptions

from .test_step import run

ESTIMATORS = {
    name: spec
    for name, spec in builtin_estimators().items()
    if "weight_by" in {field.name for field in fields(spec.options)}
}
UNITS = pytest.mark.parametrize("unit", get_args(WeightBy))


@UNITS
@pytest.mark.parametrize("name", ESTIMATORS)
def test_an_estimator_takes_every_unit(name, unit):
    spec = ESTIMATORS[name]
    table = build_table([rollout_graphs.windowed(), rollout_graphs.hierarchical()])
    for added in ("class_weight", "entropy_mean", "smoothing", "tag", "tag_reward"):  # what schedules and workers add
        table.turns[added] = np.ones(len(table))
    table.tokens["entropy"] = np.ones(len(table["tokens.turn"]))  # what the trainer adds
    assert len(set(table["row"].tolist())) > len(table.episodes["return"])  # several rows an episode
    for case in (table, random_table(3), random_table(4, tree=True)):
        assert np.isfinite(estimate(spec, case, spec.options(weight_by=unit)).values).all()


@UNITS
@pytest.mark.parametrize("of", ["estimator", "guards"])
def test_a_training_step_takes_every_unit(of, unit):
    spec = ESTIMATORS["grpo"]
    options = spec.options(weight_by=unit, group_by=("group", "role")) if of == "estimator" else None
    guards = GuardOptions(weight_by=unit) if of == "guards" else None
    _, rows, trained, _ = run(rollout_graphs.windowed(), spec, guards=guards, options=options)
    assert len(rows) > 2 and all(np.isfinite(row).all() for row in trained["advantages"])


@UNITS
def test_each_unit_of_a_group_counts_once(unit):
    graph = rollout_graphs.hierarchical()
    table = build_table([graph])
    turns, episodes = slow_units(graph, table, unit)
    keys = turn_keys(table, ("group",))
    votes = turn_votes(table, keys, unit)
    votes = table["trained"].astype(float) if votes is None else votes
    assert votes.sum() == pytest.approx(len(set().union(*turns.values())))
    per_episode = episode_votes(table, unit)
    per_episode = np.ones(len(episodes)) if per_episode is None else per_episode
    if unit == "episode":
        assert per_episode.tolist() == [1] * len(episodes)
    else:
        assert per_episode.tolist() == [len(episodes[i]) for i in range(len(episodes))]


def slow_units(graph, table, unit):
    """The units of each trained turn and of each episode, one label each."""
    row_of = {}
    for number, row in enumerate(graph_rows(graph, lambda node: True)):
        row_of |= {node: number for node, mask in zip(row.turn_index, row.mask, strict=True) if mask}
    turns = {}
    for node, turn in enumerate(number_turns([graph])[1][0].tolist()):
        if turn < 0 or not table["trained"][turn]:
            continue
        owner, length = int(table["episode"][turn]), len(graph.nodes[node].action)
        turns[turn] = {
            "token": {(node, place) for place in range(length)},
            "row": {row_of[node]},
            "turn": {node},
            "episode": {owner},
            "role": {(owner, graph.nodes[node].role)},
        }[unit]
    episodes = {i: set() for i in range(len(table.episodes["return"]))}
    for episode, turn in zip(table.step_episode.tolist(), table.step_turn.tolist(), strict=True):
        episodes[episode] |= turns.get(turn, set())
    return turns, episodes


@settings(max_examples=30, deadline=None)
@given(rollout_graphs.trees())
def test_the_column_row_is_the_row_that_trains_a_turn(graph):
    table, turns = number_turns([graph, graph])
    rows = Counter()
    for row in graph_rows(graph, lambda node: True):
        nodes = {node for node, mask in zip(row.turn_index, row.mask, strict=True) if mask}
        numbers = [{int(table["row"][turn_of[node]]) for node in nodes} for turn_of in turns]
        assert [len(found) for found in numbers] == [1, 1]
        rows.update(number for found in numbers for number in found)
    assert set(rows.values()) <= {1}
