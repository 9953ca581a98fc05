"""MetaAgent-X through stock verl: two steps, soft stages, every trained token held against its turn's credit."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.fixtures.probe import RECIPE
from tests.fixtures.taught import teach
from verl_hier.graph import RolloutGraph, Row, graph_rows, read_graphs
from verl_hier.training.schedule import Phase, phase_of

pytestmark = pytest.mark.long

SCRIPTS = ("a", "a;b", "b;a", "b;b;a", "a b", "c")
"""What the model has learned to write; nobody has defined the role of the last one."""

WORKER = """  worker:
    roles: {a: {}, b: {}}
    define_roles: false
    executor_prompt: "{role}>{order}|{observation}"
    turns: 2
    max_steps: 4
    delivery_tag: null
    design_penalty: 0.25
  sampler: {designs: 3, executions: 2}
  schedule: {period: 1, inactive_weight: 0.01}
"""


@pytest.fixture(scope="module")
def writer(byte_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The byte model after some steps on scripts, so that most of its designs are sound."""
    texts = [(f"design: train{task}", script) for task, script in itertools.product(range(8), SCRIPTS)]
    return teach(byte_model, texts, tmp_path_factory.mktemp("writer"))


def z(scores):
    """The group z-score with sample deviation; a group of one keeps its score."""
    scores = np.asarray(scores, float)
    if len(scores) == 1:
        return scores
    return (scores - scores.mean()) / (scores.std(ddof=1) + 1e-6)


def expected_credit(graph):
    """Node to credit, from the returns of the episodes alone."""
    returns = {episode.id: episode.ret for episode in graph.complete()}
    through = {}
    for episode in returns:
        for node in graph.path(episode):
            through.setdefault(node, []).append(returns[episode])
    failed = [ret for episode, ret in returns.items() if len(graph.path(episode)) == 1]
    credit = {}
    for level in (0, 1):
        nodes = sorted(node for node in through if graph.nodes[node].level == level)
        # Executions of a failed design have no turn of an executor, but a vote among the executions.
        scores = z([np.mean(through[node]) for node in nodes] + failed * level)
        credit |= dict(zip(nodes, scores[: len(nodes)], strict=True))
    return credit


def check_rewards(graph):
    """Correctness of the world, 0.4 for a finished task, 0.4 for a last action that the world took."""
    for episode in graph.complete():
        path = [graph.nodes[i] for i in graph.path(episode.id)]
        if not path[0].valid:
            assert len(path) == 1 and episode.ret == path[0].reward == -0.25
            continue
        assert path[0].reward == 0 and path[-1].level == 1
        last = path[-1].text
        even = sum(ord(c) % 2 == 0 for c in last) / max(len(last), 1)
        # An answer without a word reaches nobody; three actions end the task.
        done = sum("failure" not in node.extra for node in path[1:]) == 3
        assert path[-1].done == done and episode.status == ("finished" if done else "truncated")
        accepted = bool(last.strip())
        assert path[-1].extra == {"delivered": int(done), "final_valid": int(accepted)} | (
            {} if accepted else {"failure": "no_action"}
        )
        assert episode.ret == pytest.approx(even * done + 0.4 * done + 0.4 * accepted)


@dataclass
class Trained:
    """A row of a step and the gradient that its trained tokens should have."""

    graph: RolloutGraph
    row: Row
    gradient: torch.Tensor


def said_by(row):
    """The turn of each trained token."""
    return [turn for turn, trained in zip(row.turn_index, row.mask, strict=True) if trained]


def expected_gradient(mine, graph, row, active):
    """-credit x weight of the phase / (2 x tokens of the role): both roles have an equal say, and the ratio is 1."""
    tokens = Counter(g.nodes[turn].role for g, r in mine for turn in said_by(r))
    nodes = [graph.nodes[turn] for turn in said_by(row)]
    phase = [1.0 if node.level == active else 0.01 for node in nodes]
    return torch.tensor(
        [-graph.credit[n.id] * weight / (2 * tokens[n.role]) for n, weight in zip(nodes, phase, strict=True)]
    )


def fits(trained, old, gradient):
    """Whether a row of the trainer is this row with this gradient."""
    logprobs = torch.tensor(trained.row.logprobs)[torch.tensor(trained.row.mask) > 0]
    return (
        len(logprobs) == len(old)
        and torch.allclose(logprobs, old, atol=1e-4)
        and torch.allclose(trained.gradient, gradient, rtol=1e-3, atol=1e-7)
    )


def test_two_steps_train_who_they_should_by_what_they_earned(train, writer, probes, tmp_path):
    recipe = RECIPE.format(method="metaagentx").replace("  rollout: {template", WORKER + "  rollout: {template", 1)
    (probes / "metaagentx_bytes.yaml").write_text(recipe.replace("n: 4", "n: 6"))
    run = train(
        "metaagentx_bytes",
        [
            f"actor_rollout_ref.model.path={writer}",
            "trainer.total_training_steps=2",
            f"hier.store.path={tmp_path}/graphs",
            "actor_rollout_ref.actor.policy_loss.loss_mode=write_gradients",
            # One optimiser step, so that the ratio is 1 and a gradient is credit times weight, up to one factor.
            "actor_rollout_ref.actor.ppo_mini_batch_size=2",
        ],
    )
    assert run.code == 0, run.log[-3000:]
    assert [phase_of(step) for step in run.steps] == ["A", "B"]
    steps = [list(read_graphs(tmp_path / "graphs" / f"step_{step:06d}")) for step in (1, 2)]
    rows = []
    for number, graphs in enumerate(steps):
        active = 1 - number
        for graph in graphs:
            assert graph.phase["weights"] == {str(1 - active): 0.01} and graph.phase["levels"] is None
            check_rewards(graph)
            designs = [node for node in graph.nodes if node.level == 0]
            bad = [node for node in designs if not node.valid]
            assert len(designs) == 3 and graph.counts.get("failed_designs", 0) == len(bad)
            assert len(list(graph.complete())) == 2 * 3
            assert {node.extra["failure"] for node in bad} <= {
                "design_unknown_role",
                "design_syntax",
                "design_cut",
                "design_forbidden",
                "design_empty",
            }
            credit = expected_credit(graph)
            for node, value in credit.items():
                assert graph.credit[node] == pytest.approx(value, abs=1e-5)
        mine = [(graph, row) for graph in graphs for row in graph_rows(graph, Phase.from_dict(graph.phase).trains)]
        rows += [Trained(graph, row, expected_gradient(mine, graph, row, active)) for graph, row in mine]
    seen = {"designer": [], "executor": []}
    unused = list(range(len(rows)))
    for file in sorted((tmp_path / "run" / "probe").glob("*.pt")):
        record = torch.load(file)
        for old, mask, gradient in zip(record["old"], record["mask"], record["gradient"], strict=True):
            trained = mask.bool()
            assert not gradient[~trained].any(), "no token of an observation or of padding learns"
            if not trained.any():
                continue
            # Two designs of a task may be the same words with the same log-probs; each row is found once.
            place = next(i for i in unused if fits(rows[i], old[trained], gradient[trained]))
            unused.remove(place)
            for turn, value in zip(said_by(rows[place].row), gradient[trained].tolist(), strict=True):
                seen[rows[place].graph.nodes[turn].role].append(value)
    assert not unused
    assert any(seen["designer"]) and any(seen["executor"])
    counted = run.metric("hier/counts/failed_designs")
    assert sum(counted) == sum(graph.counts.get("failed_designs", 0) for graphs in steps for graph in graphs)
