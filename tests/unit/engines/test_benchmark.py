"""What the benchmark compares the tree engine with is what it says, and a wrong engine ends it."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest

from tests.fixtures.trainer import ROOT
from tests.fixtures.trees_of_rows import branching
from verl_hier.engines.packing import Edges, Packed

ABOUT = ("date", "machine", "runs", "steps", "verl", "torch")


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "scripts" / "bench"))
    return importlib.import_module("tree_engine")


@pytest.mark.parametrize("seed", range(3))
def test_packed_rows_share_nothing(bench: Any, seed: int) -> None:
    rows = branching(seed)
    packed: Packed = bench.SideBySide.of(rows)
    owner = np.repeat(np.arange(len(rows)), [len(row) for row in rows])
    query, key = np.ogrid[: len(packed), : len(packed)]
    sees = (key <= query) & (query < packed.end[key])
    assert (sees == ((key <= query) & (owner[key] == owner[query]))).all()
    for row, path in zip(rows, packed.paths, strict=True):
        assert packed.tokens[path].tolist() == row.tolist()
        assert packed.positions[path].tolist() == list(range(len(row)))
    assert len(Edges.of(packed, [1] * len(rows)).children) == sum(len(row) - 1 for row in rows)
    assert [begin for begin, _, _ in packed.stretches()] == [0, *np.cumsum([len(row) for row in rows])[:-1].tolist()]


@pytest.mark.parametrize("wrong", [1.01, float("nan")])
@pytest.mark.parametrize("measure", ["loss", "grad_norm"])
def test_engines_that_disagree_end_it(bench: Any, measure: str, wrong: float) -> None:
    record = {kind: {"loss": 0.3, "grad_norm": 1.0} for kind in bench.ENGINES}
    bench.require_agreement({"shape": "a shape", **record})
    record["tree"][measure] *= wrong
    with pytest.raises(SystemExit, match=f"a shape: stock, packed, tree disagree on the {measure}"):
        bench.require_agreement({"shape": "a shape", **record})


def test_whole_steps_are_compared_on_the_same_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "scripts" / "bench"))
    steps = importlib.import_module("tree_steps")
    seconds = {"stock": [[4.0, 9.0], [5.0, 8.0]], "tree": [[2.0, 4.0], [3.0, 2.0]]}
    same = dict.fromkeys(steps.SAME, 0.5)
    found = {
        engine: [[same | {f"timing_s/{part}": time for part in steps.PARTS} for time in run] for run in runs]
        for engine, runs in seconds.items()
    }
    steps.require_same_rows(found)
    record = steps.described("a recipe", found)
    assert record["stock"]["step"] == 6.5
    assert record["tree"]["update_actor"] == 2.5
    assert "6.50 → 2.50 s (0.38)" in "\n".join(
        steps.steps_table({"about": dict.fromkeys(ABOUT, "x"), "recipes": [record]})
    )
    found["tree"][1][1]["hier/rows/trained"] = 0.6
    with pytest.raises(SystemExit, match=r"not the same rollouts in step 3: hier/rows/trained is 0\.5 and 0\.6"):
        steps.require_same_rows(found)
