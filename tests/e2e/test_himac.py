"""HiMAC through stock verl: both phases, which tokens learn, resume, two ranks."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

import pytest
import torch

from verl_hier.training.schedule import Phase
from verl_hier.trajectory import graph_rows, read_graphs

pytestmark = pytest.mark.e2e


def learned_roles(folder: Path, graphs) -> dict[str, int]:
    """Tokens with a gradient by role, for one step. Rows are recognised by their log-probs."""
    rows = [(graph, row) for graph in graphs for row in graph_rows(graph, Phase.from_dict(graph.phase).trains)]
    learned: dict[str, int] = defaultdict(int)
    seen = 0
    for file in sorted(folder.glob("*.pt")):
        record = torch.load(file)
        for old, mask, gradient in zip(record["old"], record["mask"], record["gradient"], strict=True):
            if not mask.any():
                assert not gradient.any()
                continue
            graph, row = next(
                (g, r)
                for g, r in rows
                if sum(r.mask) == int(mask.sum())
                and torch.allclose(old[mask.bool()], torch.tensor(r.logprobs)[torch.tensor(r.mask).bool()], atol=1e-4)
            )
            seen += 1
            for i, turn in enumerate(row.turn_index):
                role = "observation" if turn < 0 else graph.nodes[turn].role
                learned[role] += int(gradient[i] != 0)
            assert not gradient[len(row.turn_index) :].any()
    assert seen == len(rows)
    return {role: count for role, count in learned.items() if count}


def test_both_phases_train_their_own_tokens(train, tmp_path):
    """Four steps, A B A B; gradients are those of the real loss, taken at the log-probs."""
    run = train(
        "himac_bytes",
        [
            "trainer.total_training_steps=4",
            f"hier.store.path={tmp_path}/graphs",
            "actor_rollout_ref.actor.policy_loss.loss_mode=write_gradients",
            # One file a mini-batch, in the order of the steps.
            "actor_rollout_ref.actor.ppo_mini_batch_size=2",
        ],
    )
    assert run.code == 0, run.log[-3000:]
    assert [chr(int(p)) for p in run.metric("hier/schedule/phase")] == ["A", "B", "A", "B"]
    assert run.metric("hier/rows/trained")[0] == 2 * 4
    assert run.metric("hier/server/generated_tokens") == run.metric("hier/tokens/generated")
    files = sorted((tmp_path / "probe").glob("*.pt"))
    assert len(files) >= 4
    per_step = [[] for _ in range(4)]
    steps = [list(read_graphs(tmp_path / "graphs" / f"step_{step:06d}.parquet")) for step in (1, 2, 3, 4)]
    for file in files:
        record = torch.load(file)
        for number, graphs in enumerate(steps):
            known = [
                torch.tensor(r.logprobs)[torch.tensor(r.mask).bool()]
                for g in graphs
                for r in graph_rows(g, Phase.from_dict(g.phase).trains)
            ]
            row = record["old"][0][record["mask"][0].bool()]
            if any(len(k) == len(row) and torch.allclose(k, row, atol=1e-4) for k in known):
                per_step[number].append(file)
    for number, graphs in enumerate(steps):
        folder = tmp_path / f"step_{number}"
        folder.mkdir()
        for file in per_step[number]:
            (folder / file.name).symlink_to(file)
        learned = learned_roles(folder, graphs)
        expected = "planner" if number % 2 == 0 else "executor"
        assert set(learned) == {expected}, (number, learned)


def test_resume_equals_an_uninterrupted_run(train, tmp_path):
    """Two steps, a stop, two more: the schedule, the metrics and the weights of four steps in one go."""
    common = ["trainer.save_freq=2"]
    whole = train("himac_bytes", [*common, "trainer.total_training_steps=4"], "whole")
    first = train("himac_bytes", [*common, "trainer.total_training_steps=2"], "parts")
    state = json.loads((tmp_path / "parts/checkpoints/global_step_2/hier.json").read_text())
    assert state["schedule"]["name"] == "alternating"
    second = train("himac_bytes", [*common, "trainer.total_training_steps=4"], "parts")
    for run in (whole, first, second):
        assert run.code == 0, run.log[-3000:]
    assert [s["step"] for s in second.steps] == [3, 4]
    for name in ("hier/schedule/phase", "hier/episodes/return_mean", "hier/tokens/generated", "actor/grad_norm"):
        assert whole.metric(name)[2:] == second.metric(name), name
    weights = [
        torch.load(tmp_path / name / "checkpoints/global_step_4/actor/model_world_size_1_rank_0.pt", weights_only=False)
        for name in ("whole", "parts")
    ]
    for name, value in weights[0].items():
        other = weights[1][name]
        assert torch.equal(*(v.to_local() if hasattr(v, "to_local") else v for v in (value, other))), name


def test_two_ranks(train):
    """Two FSDP ranks with a rollout replica each; optimiser steps stay those of the recipe."""
    run = train("himac_bytes", ["trainer.n_gpus_per_node=2", "trainer.total_training_steps=2"])
    assert run.code == 0, run.log[-3000:]
    assert len(run.steps) == 2
    assert all(padding < 2 * 2 for padding in run.metric("hier/rows/padding"))
    assert all(norm > 0 for norm in run.metric("actor/grad_norm"))
    assert all(difference < 1e-4 for difference in run.metric("training/rollout_probs_diff_max"))
