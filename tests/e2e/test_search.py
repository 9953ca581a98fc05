"""A run of the real trainer, whose saved critic then chooses in a search."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.fixtures.trainer import verl_hier
from verl_hier.coldstart import build_tiny
from verl_hier.coldstart.build import texts_of
from verl_hier.graph import read_graphs
from verl_hier.recipe.composed import ComposedRecipe

SMALL = (
    *("hier.environment.pool=4", "hier.environment.validation=4", "hier.rollout.environment_processes=1"),
    *("hier.rollout.max_turns=3", "data.train_batch_size=2", "actor_rollout_ref.actor.ppo_mini_batch_size=2"),
    *("critic.ppo_mini_batch_size=2", "actor_rollout_ref.rollout.n=2", "trainer.total_training_steps=1"),
    *("trainer.save_freq=1", "trainer.test_freq=-1", "trainer.val_before_train=false"),
)


@pytest.mark.long
def test_the_critic_that_training_saved_chooses_among_the_leaves_of_a_tree(tmp_path: Path) -> None:
    recipe = ComposedRecipe.named("ragen_search", SMALL)
    build_tiny(tmp_path / "model", texts_of(recipe, walks=6), seed=0)
    verl_hier(tmp_path, "train", "ragen_search", *SMALL, "actor_rollout_ref.model.path=model", "--name", "one")
    searched = ["sampler=tree_grpo", "n=4", "select=value", "--tasks", "2", "--graphs", "search.jsonl", "--json"]
    said = verl_hier(tmp_path, "eval", "runs/ragen_search/one", *searched)
    found = json.loads(said[said.index("\n{\n") if not said.startswith("{") else 0 :])["search"]
    assert (found["sampler"], found["select"], found["upper_bound"]) == ("tree_grpo", "value", "")
    assert [at["n"] for at in found["curve"]] == [1, 2, 4]
    graphs = list(read_graphs(tmp_path / "search.jsonl"))
    scores = [node.decision["choice"]["score"] for g in graphs for node in g.nodes if "choice" in node.decision]
    assert len(scores) == 8 and len(set(scores)) > 1, "the critic has learned for a step, and its values differ"
