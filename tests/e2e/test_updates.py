"""What a step trains, through stock verl: the optimiser steps that the recipe says, padding, and exchanged tasks."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.fixtures.trainer import Run, Trainer
from verl_hier.graph import RolloutGraph, read_graphs
from verl_hier.recipe.compose import overridden

TASKS, EPISODES, TURNS = 9, 3, 3
STEPS = 3
OVERRIDES = [
    # Rows are turns, and a mini-batch is measured in 64 rows, as 4 steps, and in 4 prompts.
    "trainer.v1.trainer_mode=probe_updates",
    "hier.worker={name: react, history: 1, prompt: '{observation}', window_prompt: '{observation}'}",
    # Random bytes win about every other episode.
    "hier.environment.tasks=64",
    "hier.environment.bar=0.2",
    "hier.refill={limit: 3, score: success}",
    # The estimator of an installed example package.
    "hier.plugins.baseline_gap=true",
    "hier.estimator={name: baseline_gap}",
    f"data.train_batch_size={TASKS}",
    f"actor_rollout_ref.rollout.n={EPISODES}",
    # Where the gradient of a parameter is nothing but rounding, AdamW would make a whole step of it.
    "+actor_rollout_ref.actor.optim.override_optimizer_config={eps: 1e-3}",
    f"trainer.total_training_steps={STEPS}",
    "trainer.save_freq=1",
]


@dataclass(frozen=True)
class Training:
    """A finished run."""

    run: Run
    folder: Path

    def graphs(self, step: int) -> list[RolloutGraph]:
        return list(read_graphs(self.folder / "graphs" / f"step_{step:06d}"))

    def updates(self, step: int) -> int:
        """Steps that the optimiser has counted so far."""
        file = self.folder / f"checkpoints/global_step_{step}/actor/optim_world_size_1_rank_0.pt"
        states = torch.load(file, weights_only=False)["state"].values()
        (count,) = {int(state["step"]) for state in states}
        return count

    def weights(self) -> dict[str, torch.Tensor]:
        return load_file(self.folder / f"checkpoints/global_step_{STEPS}/actor/huggingface/model.safetensors")


def trained(byte_model: Path, probes: Path, examples: Path, folder: Path, *overrides: str) -> Training:
    store = f"hier.store.path={folder}/run/graphs"
    run = Trainer(folder, byte_model, probes)("grpo_bytes", overridden([*OVERRIDES, store, *overrides]), site=examples)
    assert run.code == 0, run.log[-3000:]
    assert len(run.steps) == STEPS
    return Training(run, folder / "run")


@pytest.fixture(scope="module")
def one_rank(byte_model: Path, probes: Path, examples: Path, tmp_path_factory: pytest.TempPathFactory) -> Training:
    return trained(byte_model, probes, examples, tmp_path_factory.mktemp("one_rank"))


def test_optimiser_steps_are_those_of_the_recipe(one_rank):
    run = one_rank.run
    rows = run.metric("hier/rows/trained")
    expected = [-(-rows[0] // 64), 4, TASKS // 4]
    assert run.metric("hier/update/steps") == expected and expected[0] > 1
    assert run.metric("hier/update/rows_per_step") == [
        count / steps for count, steps in zip(rows, expected, strict=True)
    ]
    done = [one_rank.updates(step) for step in range(1, STEPS + 1)]
    assert [done[0], done[1] - done[0], done[2] - done[1]] == expected
    # Mini-batches are as long as the longest of them.
    padding = [-(-count // steps) * steps - count for count, steps in zip(rows, expected, strict=True)]
    assert run.metric("hier/rows/padding") == padding


@pytest.mark.slow
def test_tasks_without_a_signal_are_exchanged(one_rank):
    dropped = 0
    for number, step in enumerate(one_rank.run.steps, start=1):
        graphs = one_rank.graphs(number)
        kept = [graph for graph in graphs if graph.credit]
        gone = [graph for graph in graphs if not graph.credit]
        assert len({graph.task["index"] for graph in graphs}) == len(graphs) == step["hier/refill/tasks"]
        assert all(statistics.pstdev(outcomes(graph)) > 0 for graph in kept)
        assert all(len(set(outcomes(graph))) == 1 for graph in gone)
        assert len(gone) == step["hier/refill/dropped"] == step.get("hier/refill/dropped_by/std_above", 0)
        assert len(kept) == TASKS and not step["hier/refill/at_limit"], "otherwise choose another seed"
        assert step["hier/rows/trained"] == TASKS * EPISODES * TURNS
        assert step["hier/groups/count"] == TASKS
        assert step["hier/refill/batches"] == len(graphs) / TASKS
        assert step["hier/refill/dropped_tokens"] == sum(len(node.action) for graph in gone for node in graph.nodes)
        everyone = [outcome for graph in graphs for outcome in outcomes(graph)]
        assert step["hier/refill/score_mean"] == pytest.approx(statistics.mean(everyone))
        generated = step["hier/tokens/generated"] + step["hier/refill/dropped_tokens"]
        assert step["hier/server/generated_tokens"] == generated
        dropped += len(gone)
    assert dropped, "otherwise choose another seed"


def outcomes(graph: RolloutGraph) -> list[bool]:
    return [bool(episode.success) for episode in graph.complete()]


@pytest.mark.slow
def test_two_ranks_train_what_one_trains(one_rank, byte_model, probes, examples, tmp_path):
    """Two FSDP ranks with a rollout server each: the same tasks, rows, losses and weights."""
    two = trained(byte_model, probes, examples, tmp_path, "trainer.n_gpus_per_node=2")
    for name in ("hier/refill/tasks", "hier/rows/trained", "hier/update/steps", "hier/tokens/generated"):
        assert two.run.metric(name) == one_rank.run.metric(name), name
    for name in ("actor/pg_loss", "actor/grad_norm"):
        assert two.run.metric(name) == pytest.approx(one_rank.run.metric(name), rel=1e-3, abs=1e-6), name
    # These are means over the ranks, whatever the number of tokens that each of them has.
    for name in ("actor/pg_clipfrac", "actor/ppo_kl"):
        assert two.run.metric(name) == pytest.approx(one_rank.run.metric(name), rel=0.02, abs=1e-4), name
    for step in range(1, STEPS + 1):
        assert credited(two.graphs(step)) == credited(one_rank.graphs(step))
    # Each mini-batch has a row for every rank, so up to one more of padding.
    more = [b - a for a, b in zip(one_rank.run.metric("hier/rows/padding"), two.run.metric("hier/rows/padding"))]
    assert all(0 <= extra <= steps for extra, steps in zip(more, two.run.metric("hier/update/steps"), strict=True))
    theirs, ours = two.weights(), one_rank.weights()
    assert theirs.keys() == ours.keys()
    for name, values in ours.items():
        assert torch.allclose(theirs[name], values, atol=1e-5), name


def credited(graphs: list[RolloutGraph]) -> dict[int, tuple[list[list[int]], list[float]]]:
    """Of each task the actions of all turns, and their credit."""
    return {
        graph.task["index"]: ([node.action for node in graph.nodes], [round(value, 6) for value in graph.credit])
        for graph in graphs
    }
