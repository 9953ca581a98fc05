"""Sums along links and means of turns against loops, and what a record says that was given nothing."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fixtures import rollout_graphs
from verl_hier.graph import EpisodeRecord, Message, Node, RolloutGraph
from verl_hier.graph.columnar.checks import _sums
from verl_hier.graph.columnar.encode import encode
from verl_hier.graph.records import SCHEMA_VERSION

NUMBERS = st.integers(-5, 5)


@given(st.lists(st.tuples(NUMBERS, NUMBERS), max_size=12))
def test_sums_along_links_are_those_of_a_loop(drawn):
    """A link of a node is any node before it, or none."""
    links = [max(link, -1) if link < node else -1 for node, (link, _) in enumerate(drawn)]
    sums: list[int] = []
    for link, (_, value) in zip(links, drawn, strict=True):
        sums.append(value + (sums[link] if link >= 0 else 0))
    values = np.array([value for _, value in drawn], np.int64)
    assert _sums(np.array(links, np.int64), values).tolist() == sums


@pytest.mark.parametrize("alike", [True, False])
@pytest.mark.parametrize("given_of", ["entropy", "logprobs", "nothing"])
def test_the_mean_entropy_of_a_turn_is_that_of_its_tokens(given_of, alike):
    """The server's entropies, or else -log p; beside turns with the same, and beside turns with other ones."""
    graph = rollout_graphs.forked()
    for node in graph.nodes:
        has = given_of if alike else ("entropy", "logprobs", "nothing")[node.id % 3]
        node.logprobs = [-0.5 * (node.id + place + 1) for place in range(len(node.action))]
        node.entropy = [0.25 * (node.id + place) for place in range(len(node.action))]
        node.logprobs = [] if has == "nothing" else node.logprobs
        node.entropy = node.entropy if has == "entropy" else []
    found = encode([graph]).nodes["mean_entropy"].to_pylist()
    for node, mean in zip(graph.nodes, found, strict=True):
        terms = node.entropy or [-each for each in node.logprobs]
        assert math.isnan(mean) if not terms else mean == pytest.approx(sum(terms) / len(terms)), node.id


@pytest.mark.parametrize(
    ("record", "otherwise"),
    [
        (Node, {"trained": True, "valid": True, "policy_version": [0, 0], "policy": "default"}),
        (EpisodeRecord, {"source": -1, "leaf": -1, "status": "running", "trained": True}),
        (Message, {}),
        (RolloutGraph, {"version": SCHEMA_VERSION}),
    ],
)
def test_a_record_that_was_given_nothing_says_nothing(record, otherwise):
    """No number, text, entry or link; a version of weights is 0, and what was sampled is trained and valid."""
    said = {}
    for field in dataclasses.fields(record):
        made = field.default is dataclasses.MISSING and field.default_factory is not dataclasses.MISSING
        said[field.name] = field.default_factory() if made else field.default
    assert {name: value for name, value in said.items() if value and value is not dataclasses.MISSING} == otherwise
