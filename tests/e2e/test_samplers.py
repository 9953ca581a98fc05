"""Every sampler trains a step of the real trainer, and each of its trees can be made again from the file."""

from __future__ import annotations

import asyncio
import json

import pytest
from transformers import AutoTokenizer

from verl_hier.compat.runner import runner_of
from verl_hier.graph import graph_rows, read_graphs
from verl_hier.host.manager import PluginHost
from verl_hier.ops.replay import replay
from verl_hier.recipe.compose import compose, overridden

pytestmark = pytest.mark.slow

SMALL = {
    "adaptive_n": {"start": 2, "step": 1},
    "aepo": {"initial_rollouts": 2, "dynamic": True},
    "arpo": {"initial_rollouts": 2},
    "at2po": {"chains": 2, "turns": 2},
    "c3": {"fanout": [2, 2]},
    "nested": {"plans": 2},
    "tree_grpo": {"trees": 2, "leaves": 2},
    "treerpo": {"children": 2, "depth": 2, "segment_tokens": 4},
}
"""Options of samplers whose defaults do not fit four leaves; the others run as they come."""


def registered() -> list[str]:
    return sorted(PluginHost.load({"builtin": True}).specs("sampler"))


def test_each_sampler_trains_and_is_repeatable(train, byte_model, probes, tmp_path, monkeypatch):
    names = registered()
    blocks = json.dumps([{"name": name, **SMALL.get(name, {})} for name in names])
    overrides = [
        f"hier.sampler={{name: rotation, samplers: {blocks}}}".replace('"', ""),
        f"hier.store.path={tmp_path}/graphs",
        f"trainer.total_training_steps={len(names)}",
        # A schedule that remembers, and that reads the losses of the updated policy.
        "hier.estimator={name: gdro}",
        "hier.schedule={name: gdro, rate: 5.0, score: ema}",
        "trainer.total_epochs=100",
    ]
    run = train("grpo_bytes", overridden(overrides))
    assert run.code == 0, run.log[-3000:]
    assert [step["step"] for step in run.steps] == list(range(1, len(names) + 1))
    assert max(run.metric("hier/gdro/weight_max")) > 1, "no class ever weighed more than another one"
    monkeypatch.syspath_prepend(str(probes))
    recipe = probes / "grpo_bytes.yaml"
    runner = runner_of(
        compose(str(recipe), [*overrides, f"actor_rollout_ref.model.path={byte_model}"]),
        AutoTokenizer.from_pretrained(str(byte_model)),
        "qwen2",
    )
    for number, (name, step) in enumerate(zip(names, run.steps, strict=True), start=1):
        file = tmp_path / "graphs" / f"step_{number:06d}"
        graphs = list(read_graphs(file))
        assert graphs and all(graph.request["n"] == 4 for graph in graphs), name
        rows = [row for graph in graphs for row in graph_rows(graph, lambda node: True)]
        assert step["hier/rows/trained"] == len(rows) > 0, name
        assert step["actor/grad_norm"] > 0, name
        assert step["hier/gdro/weight_max"] >= 1 - 1e-9, name
        for one in asyncio.run(replay(file, runner)):
            assert one.differences == (), (name, one.differences[:3])
