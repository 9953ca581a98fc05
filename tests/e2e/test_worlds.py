"""Worlds beside the trainer, through stock verl: a short cold start and two steps of each recipe."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fixtures.trainer import verl_hier
from verl_hier.graph import RolloutGraph, read_graphs
from verl_hier.ops.runs import RUNS, Run

pytestmark = pytest.mark.slow

SHORT = ("hier.coldstart.episodes=64", "hier.coldstart.steps=80")
"""A cold start that writes actions which the world understands, most of the time."""
STEPS = ("trainer.total_training_steps=2", "data.train_batch_size=4", "trainer.test_freq=-1", "trainer.save_freq=-1")
STEPS += ("trainer.val_before_train=false", "actor_rollout_ref.actor.ppo_mini_batch_size=4")


@pytest.mark.parametrize(
    ("recipe", "roles", "branches"),
    [
        ("himac_mcp", {"planner", "executor"}, True),
        ("himac_shop", {"planner", "executor"}, True),
        ("grpo_textworld_express", {"agent"}, False),
    ],
)
def test_two_steps_in_a_world(tmp_path: Path, recipe: str, roles: set[str], branches: bool) -> None:
    """The roles spoke, the world answered them, and turns were trained with the credit of their group."""
    if recipe == "grpo_textworld_express":
        pytest.importorskip("textworld_express")
    verl_hier(tmp_path, "train", recipe, "--from-scratch", *SHORT, *STEPS, f"hier.store.path={tmp_path}/graphs")
    run = Run.all_in(tmp_path / RUNS / recipe)[-1]
    steps = [step for step in run.metrics() if "actor/grad_norm" in step]
    assert len(steps) == 2
    for step in steps:
        assert step["hier/episodes/failed"] == 0 and step["hier/rows/trained"] > 0
        assert step["actor/grad_norm"] > 0, "nobody earned more or less than the others"
    groups = [group for number in (1, 2) for group in read_graphs(tmp_path / "graphs" / f"step_{number:06d}")]
    assert len(groups) == 8 and {node.role for group in groups for node in group.nodes} == roles
    assert any(forked(group) for group in groups) == branches
    acts = [node for group in groups for node in group.nodes if node.role in ("executor", "agent")]
    assert sum(group.counts["environment_calls"] for group in groups) > len(acts) / 2
    assert sum(node.valid for node in acts) > len(acts) / 8, "the world understands what is said to it"
    assert any(credit for group in groups for credit in group.credit)


def forked(group: RolloutGraph) -> bool:
    """Whether two turns of a group follow the same turn."""
    parents = [node.parent for node in group.nodes if node.parent >= 0]
    return len(parents) > len(set(parents))
