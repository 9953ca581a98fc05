"""Tokens that an estimator leaves out are not part of verl's loss, nor of what it divides by."""

from __future__ import annotations

import pytest
import torch

from verl_hier.graph import read_graphs

pytestmark = pytest.mark.slow


def test_only_the_kept_tokens_learn_and_the_mean_is_over_them(train, tmp_path):
    run = train(
        "grpo_bytes",
        [
            "hier.estimator={name: first_tokens}",
            "hier.guards.weight_by=token",
            f"hier.store.path={tmp_path}/graphs",
            "trainer.total_training_steps=1",
            "actor_rollout_ref.actor.ppo_mini_batch_size=2",
            "actor_rollout_ref.actor.policy_loss.loss_mode=write_gradients",
        ],
    )
    assert run.code == 0, run.log[-3000:]
    graphs = list(read_graphs(tmp_path / "graphs" / "step_000001.parquet"))
    turns = sum(len(graph.nodes) for graph in graphs)
    assert sum(len(node.action) for graph in graphs for node in graph.nodes) > turns
    records = [torch.load(file) for file in sorted((tmp_path / "run" / "probe").glob("*.pt"))]
    kept = [record["gradient"][record["mask"].bool()] for record in records]
    left_out = [record["gradient"][~record["mask"].bool()] for record in records]
    assert sum(map(len, kept)) == turns and not any(gradient.any() for gradient in left_out)
    # One mini-batch, credit 1 and ratio 1: the loss is minus a mean of log-probs.
    torch.testing.assert_close(torch.cat(kept), torch.full((turns,), -1.0 / turns))
