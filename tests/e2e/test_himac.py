"""HiMAC through stock verl: both phases, which tokens learn, resume, two ranks."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from pathlib import Path

import pytest
import torch

from verl_hier.graph import graph_rows, read_graphs
from verl_hier.training.schedule import Phase

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


def test_killed_at_any_step_it_goes_on_as_an_uninterrupted_run(train, tmp_path):
    """A A B B A in one go, and killed somewhere: the same phases, rollouts, credit and weights."""
    steps, killed_at = 5, random.randint(1, 4)

    def overrides(name):
        store = f"hier.store.path={tmp_path}/{name}/graphs"
        return ["hier.schedule.period=2", "trainer.save_freq=1", f"trainer.total_training_steps={steps}", store]

    whole = train("himac_bytes", overrides("whole"), "whole")
    killed = train("himac_bytes", overrides("parts"), "parts", kill_after=killed_at)
    assert whole.code == 0 and killed.code < 0, (whole.log + killed.log)[-3000:]
    checkpoints = tmp_path / "parts" / "checkpoints"
    saved = int((checkpoints / "latest_checkpointed_iteration.txt").read_text())
    assert killed_at <= saved < steps
    state = json.loads((checkpoints / f"global_step_{saved}" / "hier.json").read_text())
    other = tmp_path / "whole" / "checkpoints" / f"global_step_{saved}" / "hier.json"
    assert state["schedule"]["name"] == "alternating" and state == json.loads(other.read_text())

    resumed = train("himac_bytes", overrides("parts"), "parts")
    assert resumed.code == 0, resumed.log[-3000:]
    assert [step["step"] for step in resumed.steps] == list(range(saved + 1, steps + 1))
    for name in ("hier/schedule/phase", "hier/episodes/return_mean", "hier/tokens/generated", "actor/grad_norm"):
        assert whole.metric(name)[saved:] == resumed.metric(name), (saved, name)
    for step in range(saved + 1, steps + 1):
        one, two = (credited(tmp_path / name / "graphs" / f"step_{step:06d}.parquet") for name in ("whole", "parts"))
        assert one == two and any(any(credit) for _, credit in one.values()), (saved, step)
    for name, (one, two) in weights(tmp_path, ("whole", "parts"), steps):
        assert torch.equal(one, two), (saved, name)


def credited(file):
    """By task, as they came back in any order: the actions of all turns and their credit."""
    return {graph.task["index"]: ([node.action for node in graph.nodes], graph.credit) for graph in read_graphs(file)}


def weights(folder, names, step):
    """(parameter, its values in each of the runs) after a step."""
    states = [
        torch.load(
            folder / name / f"checkpoints/global_step_{step}/actor/model_world_size_1_rank_0.pt", weights_only=False
        )
        for name in names
    ]
    for parameter in states[0]:
        values = (state[parameter] for state in states)
        yield parameter, [value.to_local() if hasattr(value, "to_local") else value for value in values]


def test_two_ranks(train):
    """Two FSDP ranks with a rollout replica each; optimiser steps stay those of the recipe."""
    run = train("himac_bytes", ["trainer.n_gpus_per_node=2", "trainer.total_training_steps=2"])
    assert run.code == 0, run.log[-3000:]
    assert len(run.steps) == 2
    assert all(padding < 2 * 2 for padding in run.metric("hier/rows/padding"))
    assert all(norm > 0 for norm in run.metric("actor/grad_norm"))
    assert all(difference < 1e-4 for difference in run.metric("training/rollout_probs_diff_max"))
