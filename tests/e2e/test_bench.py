"""A small panel by the command line: the cells of the real trainer, the same for the same seed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PANEL = """
summary: A flat agent on sums.
cold_starts:
  sums: {recipes: [grpo_math], overrides: [hier.coldstart.steps=60, hier.coldstart.episodes=120]}
tasks:
  sums:
    title: sums
    cold_start: sums
    tokens: 300
    test_every: 2
    held_out: 16
    # Each request's tokens depend on its seed, its prompt and the weights alone.
    overrides: [actor_rollout_ref.rollout.engine_kwargs.transformers.deterministic=true, data.shuffle=false]
    methods: {grpo: grpo math, rloo: [grpo_math, hier.estimator.name=rloo]}
"""
DIGITS = 1e-6
"""Tolerance of success on the same machine; of what a step takes nothing is compared."""


@pytest.mark.long
def test_a_cell_has_the_same_figure_for_the_same_seed(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(PANEL)
    found = []
    for name in ("first", "second"):
        command = [sys.executable, "-m", "verl_hier.cli.main", "bench", "mine.yaml", "--seeds", "1", "--out", name]
        methods = ["--methods", "grpo"] if found else []
        done = subprocess.run([*command, *methods], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        lines = (tmp_path / name / "cells.jsonl").read_text().splitlines()
        found.append({cell["method"]: cell for cell in map(json.loads, lines)})
        assert "Not run:" not in (tmp_path / name / "results.md").read_text() or methods
    first, second = found
    assert {*first} == {"grpo", "rloo"} and first["grpo"]["fingerprint"] == second["grpo"]["fingerprint"]
    curves = [cell["curve"] for cell in (first["grpo"], second["grpo"])]
    assert curves[0][-1]["tokens"] >= 300
    for one, other in zip(*curves, strict=True):
        assert one["tokens"] == other["tokens"] and one["success"] == pytest.approx(other["success"], abs=DIGITS)
    # What was measured is not measured again.
    again = subprocess.run([*command, *methods], cwd=tmp_path, capture_output=True, text=True)
    assert again.returncode == 0 and "→" not in again.stdout
    assert len((tmp_path / "second" / "cells.jsonl").read_text().splitlines()) == 1
