"""When our trainers save beside verl's own rule, and which turns their rows are said to have."""

from __future__ import annotations

import pytest
from omegaconf import OmegaConf

from tests.fixtures import rollout_graphs
from tests.fixtures.agent_loop_worker import idle_worker
from verl_hier.graph import graph_rows

pytest.importorskip("verl_hier.compat.agent_loop")
trainer = pytest.importorskip("verl_hier.compat.trainer")


@pytest.mark.parametrize(
    ("save_freq", "saved_before", "saved"),
    [
        pytest.param(25, 0, [7], id="the epochs have ended before total_training_steps"),
        pytest.param(7, 7, [], id="verl has saved this step already"),
        pytest.param(25, 7, [], id="the run was resumed from this step, and there was nothing to do"),
        pytest.param(-1, 0, [], id="the recipe saves nothing"),
    ],
)
def test_the_last_step_is_saved(monkeypatch, save_freq, saved_before, saved):
    found = []
    ours = object.__new__(trainer.HierSync)
    ours.config = OmegaConf.create({"trainer": {"save_freq": save_freq}})
    # verl has counted on when it leaves its loop.
    ours.global_steps, ours._saved = 8, saved_before
    monkeypatch.setattr(trainer.HierSync, "_save_checkpoint", lambda self: found.append(self.global_steps))
    ours.on_train_end()
    assert found == saved


def test_a_row_says_how_many_turns_its_episode_has():
    """The executor of a hierarchy starts a new row for each subgoal."""
    graph = rollout_graphs.hierarchical()
    graph.task["index"] = 0
    worker = idle_worker()
    rows = graph_rows(graph, lambda node: True)
    said = {row.episode: worker._output(graph, row).num_turns for row in rows}
    assert said == {episode: len(graph.path(episode)) for episode in said}
    assert any(len(row.nodes) < said[row.episode] for row in rows)
