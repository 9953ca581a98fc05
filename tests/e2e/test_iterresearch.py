"""IterResearch through stock verl: rounds that begin anew from a report, EAPO's credit, and a row that is left out."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

from tests.fixtures.taught import teach
from tests.fixtures.trainer import Trainer
from verl_hier.graph import RolloutGraph, graph_rows, read_graphs
from verl_hier.recipe.compose import overridden

pytestmark = pytest.mark.long

TASKS, EPISODES, ROUNDS, GAMMA = 3, 3, 3, 0.5
SAID = ("<r>a</r><a>b</a>", "<r>c</r><a>c</a>", "<a>b</a>")
"""What the model has learned to say: a report and an action, of which the world pays `b` and not `c`, or no report."""


def check_credit(graph: RolloutGraph) -> None:
    """The outcome, halved for each round that follows, against all rounds of the task."""
    scores = {}
    for episode in graph.complete():
        path = graph.path(episode.id)
        assert len(path) == ROUNDS and len({*path}) == ROUNDS
        scores |= {node: episode.ret * GAMMA ** (ROUNDS - 1 - place) for place, node in enumerate(path)}
    values = np.array([*scores.values()])
    for node, score in scores.items():
        wanted = (score - values.mean()) / (values.std(ddof=1) + 1e-6)
        assert graph.credit[node] == pytest.approx(wanted, abs=1e-4)


def test_two_steps_on_two_ranks(train: Trainer, byte_model: Path, tmp_path: Path) -> None:
    read = itertools.product(range(8), " ac", " bc", SAID)
    texts = [(f"train{task}/{report}/{action}/", said) for task, report, action, said in read]
    writer = teach(byte_model, texts, tmp_path / "writer", steps=60)
    run = train(
        "grpo_bytes",
        overridden(
            [
                f"actor_rollout_ref.model.path={writer}",
                "hier.worker={name: react, history: 1, report_tag: r, action_tag: a, prompt: '{instruction}/ / /', "
                "window_prompt: '{instruction}/{report:1}/{action:1}/'}",
                f"hier.estimator={{name: eapo, gamma: {GAMMA}}}",
                "hier.update={remainder: drop}",
                "hier.rollout.max_tokens_per_turn=20",
                "actor_rollout_ref.actor.policy_loss.loss_mode=gspo",
                f"data.train_batch_size={TASKS}",
                f"actor_rollout_ref.actor.ppo_mini_batch_size={TASKS}",
                f"actor_rollout_ref.rollout.n={EPISODES}",
                "trainer.n_gpus_per_node=2",
                "trainer.total_training_steps=2",
                f"hier.store.path={tmp_path}/graphs",
            ]
        ),
    )
    assert run.code == 0, run.log[-3000:]
    rows = TASKS * EPISODES * ROUNDS
    assert run.metric("hier/rows/trained") == [rows] * 2 and run.metric("hier/rows/left_out") == [rows % 2] * 2
    assert all(step["actor/grad_norm"] > 0 for step in run.steps)
    reports = 0
    for graph in read_graphs(tmp_path / "graphs"):
        check_credit(graph)
        assert len(graph_rows(graph, lambda node: True)) == EPISODES * ROUNDS, "each round is a row"
        reports += sum("<r>" in node.text and "</r>" in node.text for node in graph.nodes)
    assert reports > 0
