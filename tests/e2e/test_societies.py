"""Pools, libraries, baselines and opponents of a run that is killed and resumed: as if nothing had been; and SAGE."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from verl_hier.graph import read_graphs

from .test_himac import check_the_same, learned_roles
from .test_workers import lessons, taught

STEPS = 5
RECIPE = """
defaults: [ppo_trainer, hier/base, hier/size/cpu, _self_]
hier:
  plugins: {{probe: true}}
  environment: {environment}
  worker: {worker}
  sampler: {{name: independent}}
  estimator: {{name: {estimator}}}
  schedule: {schedule}
  rollout: {{template: plain, max_tokens_per_turn: 72, environment_processes: 1}}
actor_rollout_ref:
  rollout:
    n: 4
    engine_kwargs: {{transformers: {{deterministic: true}}}}
  actor: {{ppo_mini_batch_size: 4, use_kl_loss: false, optim: {{lr: 1e-3}}}}
critic: {{enable: false}}
data: {{train_batch_size: 4, max_prompt_length: 64, max_response_length: 192, shuffle: false}}
trainer:
  experiment_name: society_bytes
  save_freq: 1
  test_freq: -1
  total_training_steps: {steps}
  total_epochs: 9
  resume_mode: auto
  logger: [console, file]
"""
SOCIETIES = {
    "skill_library": (
        {
            "name": "skills",
            "prompt": "x:{instruction}",
            "aided_prompt": "x:{skill}",
            "observation_prompt": "x:",
            "conclude_prompt": "k:",
            "conclude": 1.0,
            "gate": 0.0,
        },
        {"name": "skill_library", "skills": ["c"], "cache": 2, "reservoir": 2, "warm_up": 1},
    ),
    "scored_skills": (
        {
            **{"name": "skills", "prompt": "x:{instruction}", "aided_prompt": "x:{skill}", "observation_prompt": "x:"},
            **{"aided_observation_prompt": "x:{skill}", "conclude_prompt": "k:", "caution_prompt": "k:"},
            **{"conclude": 1.0, "conclude_from": "each", "verify": False, "read": "turn", "query": "{observation} a b"},
            **{"select": "bm25", "explore": 0.5, "most": 2},
        },
        {"name": "scored_skills", "skills": ["1 c"], "warm_up": 1, "interval": 2, "least_score": 0.4, "entries": 3},
    ),
    "question_pool": (
        {
            "name": "proposer_solver_judge",
            "proposer_prompt": "q:{instruction}",
            "solver_prompt": "w:",
            "question_prompt": "j:",
            "judge_prompt": "j:",
            "shortest": 1,
            "judge_learns": True,
        },
        {"name": "question_pool", "questions": ["a", "b", "d", "e", "g"], "share": 0.9, "uses": 6, "threshold": 0.0,
         "when_dry": "without"},
    ),
    "opponents": (
        {
            "name": "self_play",
            "seats": {"now": {}, "then": {"by": "past"}},
            "prompt": "x:{instruction}",
            "observation_prompt": "x:",
        },
        {"name": "opponents", "folder": "${trainer.default_local_dir}", "share": 0.7},
    ),
    "rae": (
        {"name": "self_play", "prompt": "x:{instruction}", "observation_prompt": "x:"},
        {"name": "rae", "score": "role"},
    ),
}  # fmt: skip
SHOWN = ("hier/questions/", "hier/skills/", "hier/opponents/", "hier/rae/baseline/")


@pytest.fixture(scope="module")
def member(byte_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The byte model after some steps on what the roles of all societies say."""
    skills = [("k:", f"<skill>{letter}</skill>") for letter in "ab"] * 4
    return taught(byte_model, tmp_path_factory.mktemp("member"), lessons() + skills)


@pytest.mark.long
@pytest.mark.parametrize("name", SOCIETIES)
def test_killed_at_a_random_step_it_goes_on_bit_by_bit(train, member, probes, tmp_path, name):
    worker, schedule = SOCIETIES[name]
    (probes / f"society_{name}.yaml").write_text(
        RECIPE.format(
            steps=STEPS,
            environment="{name: bytes}",
            worker=json.dumps(worker),
            schedule=json.dumps(schedule),
            estimator="rae" if name == "rae" else "grpo",
        )
    )

    def settings(of: str) -> list[str]:
        return [f"actor_rollout_ref.model.path={member}", f"hier.store.path={tmp_path / of / 'graphs'}"]

    whole = train(f"society_{name}", settings("whole"), "whole")
    assert whole.code == 0, whole.log[-3000:]
    step = random.randrange(1, STEPS - 1)
    killed = train(f"society_{name}", settings("parts"), "parts", watch=train.kill_after(step, "parts"))
    assert killed.code == 137, killed.log[-3000:]
    saved = int((tmp_path / "parts" / "checkpoints" / "latest_checkpointed_iteration.txt").read_text())
    resumed = train(f"society_{name}", settings("parts"), "parts")
    assert resumed.code == 0, resumed.log[-3000:]
    assert [each["step"] for each in resumed.steps] == list(range(saved + 1, STEPS + 1))
    check_the_same((whole, tmp_path / "whole"), resumed.steps, tmp_path / "parts", saved, STEPS)
    states = []
    for number in range(1, STEPS + 1):
        one, two = (
            (tmp_path / of / "checkpoints" / f"global_step_{number}" / "hier.json").read_text()
            for of in ("whole", "parts")
        )
        assert one == two, number
        states.append(json.loads(one)["schedule"]["state"])
    assert len({json.dumps(state) for state in states}) > 2, "it has changed in more than one step"
    shown = [key for key in resumed.steps[-1] if key.startswith(SHOWN)]
    assert shown and all(resumed.steps[-1][key] == whole.steps[-1][key] for key in shown)
    if name == "opponents":
        check_opponents(tmp_path / "whole" / "graphs")


def check_opponents(graphs):
    """Turns of past checkpoints were made by their weights and have no credit."""
    played = [graph for step in range(2, STEPS + 1) for graph in read_graphs(graphs / f"step_{step:06d}")]
    theirs = [(graph, node) for graph in played for node in graph.nodes if node.policy != "default"]
    assert theirs and {node.role for _, node in theirs} == {"then"}
    assert not any(node.trained or graph.credit[node.id] for graph, node in theirs)
    assert {node.extra["opponent"] for _, node in theirs} >= {1}


SCRIPT, CALL = "<python>def f(): return 2\nf()</python>", "<python>f()</python>"
KEPT = "def f():\n    return 2"


@pytest.mark.long
def test_functions_that_help_are_trained_with_their_reward(train, byte_model, probes, tmp_path):
    """Two steps of SAGE, with the credit of each question computed again from what its turns say."""
    starts = [f"f:-{SCRIPT}<|im_end|>o:", f"f:{KEPT}{CALL}<|im_end|>o:", f"f:{KEPT}", "f:-"]
    told = [(start, f"<answer>{number}</answer>") for start in starts for number in (2, 3)]
    told += [("f:-", SCRIPT), (f"f:{KEPT}", CALL)] * 4
    questions = {"question": [f"q{i}" for i in range(40)], "answer": ["#### 2"] * 40}
    pq.write_table(pa.table(questions), tmp_path / "questions.parquet")
    world = {"name": "python_tool", "data_path": str(tmp_path / "questions.parquet"), "chain": 2, "max_steps": 2}
    worker = {"name": "skill_functions", "prompt": "f:{skills}", "none": "-", "observation_prompt": "o:"}
    recipe = RECIPE.format(
        steps=2,
        environment=json.dumps({**world, "pool": 8, "validation": 2}),
        worker=json.dumps(worker),
        schedule="{name: joint}",
        estimator="sage",
    )
    (probes / "society_sage.yaml").write_text(recipe)
    model = taught(byte_model, tmp_path / "coder", told)
    loss = "actor_rollout_ref.actor.policy_loss.loss_mode=write_gradients"
    run = train("society_sage", [f"actor_rollout_ref.model.path={model}", f"hier.store.path={tmp_path}/graphs", loss])
    assert run.code == 0, run.log[-3000:]
    graphs = [graph for step in (1, 2) for graph in read_graphs(tmp_path / "graphs" / f"step_{step:06d}")]
    nodes = [node for graph in graphs for node in graph.nodes]
    assert len(graphs) == 8 and {node.segment for node in nodes} == {0, 1}
    assert any(node.extra["skill_sources"] for node in nodes)
    questions = sum(2 * len(list(graph.complete())) for graph in graphs)
    assert 0 < sum(node.extra["question_solved"] for node in nodes) < questions
    for graph in graphs:
        for question in (0, 1):
            asked = [[node for node in graph.nodes if (node.episode, node.segment) == (each.id, question)]
                     for each in graph.complete()]  # fmt: skip
            earned = np.array([sum(node.reward for node in turns) + helped(graph, turns) for turns in asked])
            scores = (earned - earned.mean()) / (earned.std(ddof=1) + 1e-6)
            for turns, score in zip(asked, scores, strict=True):
                assert [graph.credit[node.id] for node in turns] == pytest.approx([score] * len(turns), abs=1e-4)
    credited = sum(len(node.action) for graph in graphs for node in graph.nodes if graph.credit[node.id])
    assert sum(learned_roles(tmp_path / "run" / "probe", graphs).values()) == credited > 0


def helped(graph, turns):
    """What a question earns for skills: a point for one that it called, and one for one of its own that has helped."""
    mine = [node for node in graph.nodes if node.episode == turns[0].episode]
    called = any(node.extra["skill_used"] for node in turns)
    left = any(int(node.extra["skill_sources"]) >> turns[0].segment & 1 for node in mine)
    return any(node.extra["question_solved"] for node in turns) * (called + left)
