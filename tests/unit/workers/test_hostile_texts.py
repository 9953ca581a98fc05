"""Ten thousand hostile outputs over all workers: none ends a run, none is executed, all failures are named."""

from __future__ import annotations

import json
import random
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.fixtures.hostile_outputs import LONG, hostile
from tests.fixtures.hostile_rollouts import cost, of_several_roles, roles_of, roll, roll_in_byte_pairs, workers
from tests.fixtures.light import sent
from verl_hier.graph import read_graphs, write_graphs, write_step
from verl_hier.training.ledger import Ledger

OUTPUTS = 10_000
IN_BYTE_PAIRS = 200
"""Outputs of each worker."""
LOOP_S, MEASUREMENTS = 0.2, 4
"""Seconds of processor time for which one turn of a megabyte may keep the event loop from others, and how often it is
measured at most."""
MEMORY_MB = 100
"""Memory that it may take."""
USUAL = ("letters", "agents", "lines")
"""The texts of `LONG` that are tried without `--long`."""


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
    if name.partition("/")[0] not in ("react", "rlvmr", "single_turn", "planner_executor", "tool_agent", "gateway"):
        assert failures, "what is wrong has a name"


@pytest.mark.parametrize("name", of_several_roles())
def test_outputs_of_two_policies(name, tmp_path, monkeypatch):
    """Every other role has a policy of its own; each row is that of one policy, with the turns of its roles alone."""
    monkeypatch.chdir(tmp_path)
    chance, outputs = random.Random(f"{name} of two policies"), 0
    assigned = dict.fromkeys(roles_of(name)[1::2], "second")
    while outputs < OUTPUTS // len(of_several_roles()) + 1:
        graph = roll(name, lambda prompt, sampling: hostile(chance), 20, assigned)
        graph.check()
        outputs += len(graph.nodes)
        assert {episode.status for episode in graph.episodes} <= {"finished", "truncated"}
        assert all(node.policy == assigned.get(node.role, "default") for node in graph.nodes)
        light, keys, rows = sent([graph])
        for policy, (_, row) in zip(Ledger(light, keys).policies, rows, strict=True):
            assert {graph.nodes[node].policy for node in row.nodes} == {policy}
    assert not list(tmp_path.iterdir()), "an output was executed"


@pytest.mark.parametrize("name", workers())
def test_outputs_in_byte_pairs(name, tmp_path, monkeypatch):
    """The tokenizer raises on halves of characters; `scripts/fuzz.py outputs` plays more of these."""
    monkeypatch.chdir(tmp_path)
    chance, outputs = random.Random(f"{name} in byte pairs"), 0
    while outputs < IN_BYTE_PAIRS:
        graph = roll_in_byte_pairs(name, lambda prompt, sampling: hostile(chance), n=20)
        graph.check()
        outputs += len(graph.nodes)
        assert {episode.status for episode in graph.episodes} <= {"finished", "truncated"}
        write_graphs(tmp_path / "step.jsonl", [graph])
        write_step(tmp_path / "store", 1, [graph])
        assert next(read_graphs(tmp_path / "step.jsonl")).nodes == graph.nodes
        shutil.rmtree(tmp_path / "store")
    assert [file.name for file in tmp_path.iterdir()] == ["step.jsonl"], "an output was executed"


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


LONG_TEXTS = [pytest.param(text, marks=pytest.mark.slow if text in USUAL else pytest.mark.long) for text in LONG]


@pytest.mark.parametrize("name", workers())
@pytest.mark.parametrize("text", LONG_TEXTS)
def test_a_turn_of_a_megabyte_holds_up_nobody(name, text):
    """The least of some measurements counts: the collector of garbage and the machine's host add to single ones."""
    measured = []
    while len(measured) < MEASUREMENTS and min(measured, default=LOOP_S) >= LOOP_S:
        found = cost(name, [LONG[text], "left"], tokens=len(LONG[text]) + 1)
        assert found.graph.episodes[0].status in ("finished", "truncated")
        measured.append(found.longest_s)
    assert min(measured) < LOOP_S, measured


@pytest.mark.parametrize(
    "texts", [pytest.param(["agents"], marks=pytest.mark.slow), pytest.param([], marks=pytest.mark.long)]
)
def test_a_turn_of_a_megabyte_takes_little_memory(texts):
    """All workers in forks of one process; without names, all texts."""
    command = [sys.executable, "-m", "tests.fixtures.hostile_rollouts", *texts]
    made = subprocess.run(command, cwd=Path(__file__).parents[3], capture_output=True, text=True, check=True)
    found = json.loads(made.stdout)
    assert set(found) == set(workers()) and all(each.keys() >= set(texts) for each in found.values())
    most = {name: max(each.values()) for name, each in found.items()}
    assert 5 < max(most.values()) < MEMORY_MB, most
