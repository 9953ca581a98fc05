"""VSPO in the real trainer: tasks whose attempts all have one return are trained by a stage."""

from __future__ import annotations

import pytest

from verl_hier.graph import RolloutGraph, read_graphs
from verl_hier.ops.offline import compare

pytestmark = pytest.mark.long


def understood(graph: RolloutGraph, episode: int) -> int:
    """Turns of an episode that the world has understood."""
    return sum(graph.nodes[node].valid for node in graph.path(episode))


def test_two_steps_in_which_a_stage_stands_in_for_equal_returns(train, tmp_path):
    options = {"stages": ["valid", "n_tokens"], "most": 1.5}
    run = train(
        "grpo_bytes",
        [
            "hier.estimator.name=vspo",
            "+hier.environment.equal=true",
            "+hier.estimator.stages=[valid, n_tokens]",
            "+hier.estimator.most=1.5",
            f"hier.store.path={tmp_path}/graphs",
            "trainer.total_training_steps=2",
        ],
    )
    assert run.code == 0, run.log[-3000:]
    assert [step["step"] for step in run.steps] == [1, 2]
    assert all(step["actor/grad_norm"] > 0 for step in run.steps)
    graphs = list(read_graphs(tmp_path / "graphs"))
    valid = [
        [sum(graph.nodes[node].valid for node in graph.path(one.id)) for one in graph.episodes] for graph in graphs
    ]
    differing = [graph for graph, counts in zip(graphs, valid, strict=True) if len({*counts}) > 1]
    assert differing and all(any(graph.credit) for graph in differing), "no task had attempts of unlike validity"
    found = {
        row["name"]: row["nonzero"] for row in compare(["grpo", "vspo"], tmp_path / "graphs", {"vspo": options}).rows()
    }
    assert found["vspo"] > found["grpo"]
