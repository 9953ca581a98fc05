"""Ten thousand hostile outputs over all workers: none ends a run, none is executed, all failures are named."""

from __future__ import annotations

import random
import re
import tracemalloc
from collections import Counter

import pytest

from tests.fixtures.hostile_outputs import LONG, hostile
from tests.fixtures.hostile_rollouts import cost, roll, workers

OUTPUTS = 10_000
LOOP_S = 1.0
"""Processor time for which one turn of a megabyte may keep the event loop from others."""
MEMORY = 100 * 2**20
"""Bytes that it may take."""


@pytest.mark.parametrize("name", workers())
def test_outputs_of_random_pieces(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    chance = random.Random(name)
    outputs, failures, wanted = 0, Counter(), OUTPUTS // len(workers()) + 1

    def answer(prompt, sampling):
        return hostile(chance)

    while outputs < wanted:
        graph = roll(name, answer, n=20)
        graph.check()
        outputs += len(graph.nodes)
        for episode in graph.episodes:
            assert episode.status in ("finished", "truncated"), episode.error
        for node in graph.nodes:
            if "failure" in node.extra:
                assert not node.valid and re.fullmatch(r"[a-z]\w*", node.extra["failure"])
                failures[node.extra["failure"]] += 1
    assert outputs >= wanted
    assert not list(tmp_path.iterdir()), "an output was executed"
    if name not in ("react", "single_turn", "planner_executor"):
        assert failures, "what is wrong has a name"


@pytest.mark.parametrize("name", workers())
@pytest.mark.parametrize(
    "text",
    ["<action>" * 1_250_000, "<plan>" + "x" * 10_000_000, "(" * 10_000_000, "solver\n" * 1_000_000, "a;" * 5_000_000],
    ids=["tags", "unclosed", "brackets", "lines", "separators"],
)
def test_ten_megabytes(name, text):
    said = iter([text])
    graph = roll(name, lambda prompt, sampling: next(said, "left"), n=1)
    assert graph.episodes[0].status in ("finished", "truncated")


@pytest.mark.slow
@pytest.mark.parametrize("name", workers())
@pytest.mark.parametrize("text", LONG)
def test_a_turn_of_a_megabyte_holds_up_nobody(name, text):
    found = cost(name, [LONG[text], "left"], tokens=len(LONG[text]) + 1)
    assert found.graph.episodes[0].status in ("finished", "truncated")
    assert found.longest_s < LOOP_S, f"{found.longest_s:.2f} s"


@pytest.mark.slow
@pytest.mark.parametrize("name", workers())
@pytest.mark.parametrize("text", ["words", "agents"])
def test_a_turn_of_a_megabyte_takes_little_memory(name, text):
    cost(name, ["left"], tokens=10)
    tracemalloc.start()
    try:
        cost(name, [LONG[text], "left"], tokens=len(LONG[text]) + 1)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < MEMORY, f"{most / 2**20:.0f} MiB"
