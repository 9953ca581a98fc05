"""An orchestrator through stock verl: two steps in which it learns by the answers of sub-agents that never learn."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from tests.fixtures.probe import RECIPE
from tests.fixtures.taught import teach
from tests.fixtures.trainer import Trainer
from verl_hier.graph import RolloutGraph, read_graphs

pytestmark = pytest.mark.long

PLANS = ("compute", "vote", "refine", "debate", "vote;compute", "<a>bd</a>", "nobody")
"""What the model has learned to write: four blocks, two calls, an answer of its own, and a role that is not there."""

TURNS = {"compute": 1, "vote": 3, "debate": 5, "vote;compute": 4}
"""Turns of the sub-agents of a plan."""

WORKER = """  worker:
    direct_tag: a
    answer_tag: null
    answer_action: "last:{content}"
    executor_prompt: "{role}>{order}|{observation}"
    plans: 2
    feedback_prompt: "again"
    blocks: {samples: 3, rounds: 2, critic_prompt: "k>{said}", decide_prompt: "d>{said}"}
  policies: {sub_agents: {roles: [executor], train: none}}
"""


@pytest.fixture(scope="module")
def writer(byte_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The byte model after some steps on plans, so that most of them are sound."""
    texts = [(f"design: train{task}", plan) for task, plan in itertools.product(range(8), PLANS)]
    return teach(byte_model, texts, tmp_path_factory.mktemp("writer"))


def check_returns(graph: RolloutGraph) -> None:
    """The answer's evenness, and once what a plan is worth that can be carried out."""
    for episode in graph.complete():
        path = [graph.nodes[node] for node in graph.path(episode.id)]
        plans = [node for node in path if node.role == "designer"]
        assert 1 <= len(plans) <= 2 and path[0] is plans[0]
        assert all(not plan.valid and plan.extra["design_valid"] == 0 for plan in plans[:-1]), (
            "only a failed plan is revised"
        )
        if not plans[-1].valid:
            assert episode.ret == 0 and len(path) == len(plans)
            continue
        agents = path[len(plans) :]
        answer = agents[-1].text if agents else plans[-1].text.partition("<a>")[2].partition("</a>")[0].strip()
        if plans[-1].text in TURNS:
            assert len(agents) == TURNS[plans[-1].text]
        if plans[-1].text in ("compute", "debate") or not agents:
            said = f"last:{answer}"
            even = sum(ord(sign) % 2 == 0 for sign in said) / len(said)
            assert episode.ret == pytest.approx(0.1111 + even, abs=1e-4)
        assert episode.ret > 0.1111


def test_two_steps_in_which_only_the_orchestrator_learns(
    train: Trainer, writer: Path, probes: Path, tmp_path: Path
) -> None:
    recipe = RECIPE.format(method="mas_orchestra").replace("  rollout: {template", WORKER + "  rollout: {template", 1)
    recipe = recipe.replace("max_tokens_per_turn: 6", "max_tokens_per_turn: 16")
    (probes / "mas_orchestra_bytes.yaml").write_text(recipe.replace("n: 4", "n: 6"))
    run = train(
        "mas_orchestra_bytes",
        [
            f"actor_rollout_ref.model.path={writer}",
            "trainer.total_training_steps=2",
            f"hier.store.path={tmp_path}/graphs",
        ],
    )
    assert run.code == 0, run.log[-3000:]
    assert [step["step"] for step in run.steps] == [1, 2] and all(step["actor/grad_norm"] > 0 for step in run.steps)
    said = Counter[str]()
    for graph in read_graphs(tmp_path / "graphs"):
        check_returns(graph)
        returns = {episode.id: episode.ret for episode in graph.complete()}
        mean, deviation = np.mean(list(returns.values())), np.std(list(returns.values()), ddof=1)
        for episode, ret in returns.items():
            for node in map(graph.nodes.__getitem__, graph.path(episode)):
                said[node.role] += 1
                wanted = (ret - mean) / (deviation + 1e-6) if node.role == "designer" else 0.0
                assert graph.credit[node.id] == pytest.approx(wanted, abs=1e-4)
                assert (node.policy or "default") == ("default" if node.role == "designer" else "sub_agents")
    assert said["designer"] >= 24 and said["executor"] > 12
