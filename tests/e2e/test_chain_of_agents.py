"""Chain-of-Agents from nothing by one command: distilled data, verl's SFT trainer, then reinforcement learning."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer

from tests.fixtures.trainer import verl_hier
from verl_hier.graph import graph_rows, read_graphs
from verl_hier.ops.runs import RUNS, Run
from verl_hier.training.schedule import Phase, phase_of
from verl_hier_plugins.workers.chain_of_agents.grammar import LEVELS

pytest.importorskip("alfworld")
pytestmark = pytest.mark.long

RECIPE = "chain_of_agents_alfworld"
OVERRIDES = [
    *("hier.environment.pool=16", "hier.environment.validation=4", "hier.environment.max_steps=6"),
    # A model that has learned to speak as a chain of agents, more or less, from episodes that reach their end.
    *("hier.coldstart.episodes=48", "hier.coldstart.variants=[{max_steps: 28}]"),
    *("hier.coldstart.steps=90", "hier.coldstart.batch_size=12"),
    "hier.plugins.probe=true",
    "hier.worker.violation_penalty=0.1",
    "hier.schedule={name: alternating, period: 1, levels: [0, 1]}",
    "actor_rollout_ref.rollout.n=6",
    "actor_rollout_ref.rollout.engine_kwargs.transformers.deterministic=true",
    "actor_rollout_ref.actor.policy_loss.loss_mode=write_gradients",
    "hier.update={mini_batch: {prompts: 2}, keep_tasks_together: true, epochs: 2}",
    "data.train_batch_size=4",
    *("trainer.total_training_steps=2", "trainer.test_freq=-1", "trainer.save_freq=-1"),
    # As many episodes as the recipe says.
    "hier.refill=null",
]


def test_distilled_and_then_trained_level_by_level(probes, tmp_path):
    (tmp_path / "probe").mkdir()
    store = f"hier.store.path={tmp_path}/graphs"
    variables = {"PYTHONPATH": str(probes), "PROBE_FOLDER": str(tmp_path / "probe")}
    said = verl_hier(tmp_path, "train", RECIPE, "--from-scratch", *OVERRIDES, store, **variables)
    assert "3/3 90 steps of supervised training" in said
    (run,) = Run.all_in(tmp_path / RUNS / RECIPE)
    logs = run.metrics()
    assert [phase_of(step) for step in logs] == ["A", "B"]
    steps = [list(read_graphs(tmp_path / "graphs" / f"step_{step:06d}")) for step in (1, 2)]
    for number, (graphs, logged) in enumerate(zip(steps, logs, strict=True)):
        rows = [(g, row) for g in graphs for row in graph_rows(g, Phase.from_dict(g.phase).trains)]
        assert logged["hier/rows/trained"] == len(rows) > 0
        assert logged["hier/update/steps"] == 4, "two mini-batches, each of them twice"
        complete = [episode for graph in graphs for episode in graph.complete()]
        assert len(complete) == 4 * 6
        # One context, so one row an episode; a row reads the world in between.
        assert len(rows) == len({(id(graph), row.episode) for graph, row in rows})
        failed = sum("failure" in node.extra for graph in graphs for node in graph.nodes)
        assert failed == sum(count for name, count in logged.items() if name.startswith("hier/failures/"))
        learned, read = gradients(tmp_path / "probe", rows)
        assert read > 0, "rows hold observations"
        assert set(learned) <= {role for role, level in LEVELS.items() if level == number}, learned
        assert learned["plan" if number == 0 else "think"] > 0
    check_masks(steps, AutoTokenizer.from_pretrained(tmp_path / "runs/coldstart/alfworld_chain_of_agents/model"))


def gradients(folder: Path, rows) -> tuple[dict[str, int], int]:
    """Tokens with a gradient by role, and how many tokens were only read; rows are recognised by their log-probs.

    Nothing but actions of trained turns may have a gradient.
    """
    learned: dict[str, int] = defaultdict(int)
    read = 0
    known = [(graph, row, torch.tensor(row.logprobs), torch.tensor(row.mask).bool()) for graph, row in rows]
    for file in sorted(folder.glob("*.pt")):
        record = torch.load(file)
        if "gradient" not in record:
            continue
        for old, mask, gradient in zip(record["old"], record["mask"], record["gradient"], strict=True):
            spoken = old[mask.bool()]
            for graph, row, logprobs, trained in known:
                said = logprobs[trained]
                if len(said) == len(spoken) and torch.allclose(said, spoken, atol=1e-4):
                    assert not gradient[len(row.turn_index) :].any()
                    for place, turn in enumerate(row.turn_index):
                        if gradient[place] != 0:
                            assert row.mask[place] and turn >= 0
                            learned[graph.nodes[turn].role] += 1
                        read += turn < 0
                    break
    return dict(learned), read


def check_masks(steps, tokenizer) -> None:
    """Token by token: what stands inside `<observation>` was never sampled, everything else after the prompt was."""
    opening, closing = (tokenizer.convert_tokens_to_ids(tag) for tag in ("<observation>", "</observation>"))
    observations = 0
    for graph in (graph for graphs in steps for graph in graphs):
        for row in graph_rows(graph, lambda node: True):
            inside = False
            for token, turn in zip(row.response, row.turn_index, strict=True):
                forged = turn >= 0 and token == opening
                inside = inside or (token == opening and not forged)
                assert (turn < 0) == inside
                observations += inside
                inside = inside and token != closing
    assert observations
