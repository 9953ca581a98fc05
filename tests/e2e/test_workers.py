"""Hierarchical workers through stock verl: two steps, every token held against who said it and what it earned."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from verl_hier.graph import read_graphs
from verl_hier.rollout.policy import DEFAULT_POLICY
from verl_hier_plugins.workers.memory import Bank

from .test_himac import learned_roles

pytestmark = pytest.mark.slow

WORKERS = [
    {"name": "switch_keep", "prompt": "s:{observation}", "history": 1, "window_prompt": "s:{observation}"},
    {
        "name": "delegation",
        "planner_prompt": "p:{instruction}",
        "agents": {"e": {"prompt": "x:{task}", "turns": 3}},
        "observation_prompt": "x:",
        "max_tasks": 1,
    },
    {
        "name": "dual_loop",
        "planner_prompt": "x:{instruction}",
        "executor_prompt": "x:{plan}",
        "repair_prompt": "x:",
        "tries": 2,
        "plans": 2,
    },
    {"name": "agent_flow", "planner_prompt": "x:{instruction}", "executor_prompt": "x:{step}", "verifier": False},
    {
        "name": "team",
        "roles": {
            "lead": {"prompt": "p:{instruction}", "later_prompt": "x:"},
            "e": {"prompt": "x:{task}", "action": "{content}", "level": 1},
        },
        "topology": {"kind": "lead", "rounds": 3},
    },
    {"name": "self_play", "prompt": "x:{instruction}", "observation_prompt": "x:"},
    {
        "name": "proposer_solver_judge",
        "proposer_prompt": "q:{instruction}",
        "solver_prompt": "w:",
        "question_prompt": "j:",
        "judge_prompt": "j:",
        "shortest": 1,
    },
    {
        "name": "skills",
        "prompt": "x:{instruction}",
        "aided_prompt": "x:{skill}",
        "observation_prompt": "x:",
        "conclude_prompt": "k:",
        "conclude": 1.0,
        "select": "words",
    },
    {
        "name": "memory",
        "pieces": "pieces",
        "manager_prompt": "m:{memory}{piece}",
        "answer_prompt": "x:{memory}",
        "answer_action": "last:{content}",
    },
    # In the second step, when there is a checkpoint of the first.
    {
        "name": "self_play",
        "seats": {"now": {}, "then": {"by": "past"}},
        "prompt": "x:{instruction}",
        "observation_prompt": "x:",
    },
]
RECIPE = """
defaults: [ppo_trainer, hier/base, hier/size/cpu, _self_]
hier:
  plugins: {{probe: true}}
  environment: {{name: bytes, bar: 0.3, tasks: 10}}
  worker: {{name: troupe, workers: {workers}}}
  sampler: {{name: independent}}
  estimator: {{name: grpo}}
  schedule: {{name: opponents, share: 1.0, folder: "${{trainer.default_local_dir}}"}}
  rollout: {{template: plain, max_tokens_per_turn: 72, environment_processes: 1}}
actor_rollout_ref:
  rollout:
    n: 4
    engine_kwargs: {{transformers: {{deterministic: true}}}}
  actor: {{ppo_mini_batch_size: 5, use_kl_loss: false, optim: {{lr: 1e-3}}}}
critic: {{enable: false}}
data: {{train_batch_size: 5, max_prompt_length: 64, max_response_length: 192, shuffle: false}}
trainer: {{experiment_name: workers_bytes, save_freq: 1, test_freq: -1, logger: [console, file]}}
"""
ROLES = [
    *({"agent"}, {"planner", "executor"}, {"planner", "executor"}, {"planner", "executor"}, {"lead", "e"}),
    *({"player_0", "player_1"}, {"proposer", "solver", "judge"}, {"solver", "concluder", "verifier"}),
    *({"manager", "answerer"}, {"now", "then"}),
]
TAGS = "<switch>{}</switch><subgoal>{}</subgoal><action>{}</action>"


def lessons() -> list[tuple[str, str]]:
    """What the model has learned: the tags where a worker wants them, else a letter or two."""
    letters = ["a", "b", "ab", "d"]
    starts = [f"s:train{i}?" for i in range(8)] + ["s:1.", "s:2."]
    told = [
        (start, TAGS.format(word, "g", letter)) for start in starts for word in ("SWITCH", "KEEP") for letter in "ab"
    ]
    told += [(f"p:train{i}", f"<e>{letter}</e>") for i in range(8) for letter in "ab"]
    told += [(f"q:train{i}", f"<question>{letter}</question>") for i in range(8) for letter in "ab"]
    told += [("w:", f"<answer>{letter}</answer>") for letter in "ab"] * 4
    told += [("j:", f"<score>{number}</score>") for number in (2, 9)] * 4
    told += [("k:", f"<skill>{letter}</skill>") for letter in "ab"] * 4
    told += [("m:a", said) for said in ("ADD a", "ADD b", "NOOP")] * 2
    told += [("m:b", said) for said in ("ADD a", "ADD b", "NOOP")]
    told += [(f"m:1 {letter}b", said) for letter in "ab" for said in ("ADD b", "UPDATE 1 d", "DELETE 1")]
    banks = ["1 a", "1 b", "1 d", "1 a 2 b", "1 b 2 b"]
    short = [f"x:train{i}" for i in range(10)] + [f"x:{letter}" for letter in [*letters, *banks]] + ["x:"]
    return told + [(start, letter) for start in short for letter in letters]


@pytest.fixture(scope="module")
def speaker(byte_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The byte model after some steps on the lessons."""
    return taught(byte_model, tmp_path_factory.mktemp("speaker"), lessons())


def taught(byte_model: Path, folder: Path, told: list[tuple[str, str]]) -> Path:
    """The byte model after some steps on (prompt, answer), in a folder."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(byte_model)
    model = AutoModelForCausalLM.from_pretrained(byte_model, dtype=torch.float32)
    rows = [(tokenizer.encode(a), [*tokenizer.encode(b), tokenizer.eos_token_id]) for a, b in told]
    width = max(len(a) + len(b) for a, b in rows)
    tokens = torch.full((len(rows), width), tokenizer.pad_token_id)
    labels = torch.full((len(rows), width), -100)
    for i, (prompt, answer) in enumerate(rows):
        tokens[i, : len(prompt) + len(answer)] = torch.tensor(prompt + answer)
        labels[i, len(prompt) : len(prompt) + len(answer)] = torch.tensor(answer)
    optimiser = torch.optim.AdamW(model.parameters(), lr=5e-3)
    torch.manual_seed(0)
    for _ in range(350):
        chosen = torch.randperm(len(rows))[:32]
        loss = model(input_ids=tokens[chosen], labels=labels[chosen]).loss
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def test_two_steps_train_who_they_should(train, speaker, probes, tmp_path):
    (probes / "workers_bytes.yaml").write_text(RECIPE.format(workers=json.dumps(WORKERS)))
    run = train(
        "workers_bytes",
        [
            f"actor_rollout_ref.model.path={speaker}",
            "trainer.total_training_steps=2",
            f"hier.store.path={tmp_path}/graphs",
            "actor_rollout_ref.actor.policy_loss.loss_mode=write_gradients",
        ],
    )
    assert run.code == 0, run.log[-3000:]
    graphs = [list(read_graphs(tmp_path / "graphs" / f"step_{step:06d}")) for step in (1, 2)]
    said: dict[int, set[str]] = {number: set() for number in range(len(WORKERS))}
    for graph in (graph for step in graphs for graph in step):
        number = graph.task["index"] % len(WORKERS)
        assert len(list(graph.complete())) == 4
        said[number] |= {node.role for node in graph.nodes}
        check_structure(WORKERS[number]["name"], graph)
        check_credit(graph)
    assert [said[number] for number in range(len(WORKERS))] == ROLES
    assert any(node.extra.get("switch") and node.valid for step in graphs for g in step for node in g.nodes)
    learned = learned_roles(tmp_path / "run" / "probe", [graph for step in graphs for graph in step])
    assert "observation" not in learned and {"agent", "planner", "executor", "manager", "answerer", "now"} <= set(
        learned
    )
    assert "then" not in learned, "nobody learns what a past checkpoint has said"
    earned = [graph for step in graphs for graph in step if any(graph.credit)]
    tokens = sum(len(n.action) for g in earned for n in g.nodes if g.credit[n.id])
    assert sum(learned.values()) == tokens, "every token that earned something learns, and no other"


def check_credit(graph):
    """GRPO: the z-score of an episode's return on each of its turns."""
    returns = np.array([episode.ret for episode in graph.complete()])
    scores = (returns - returns.mean()) / (returns.std(ddof=1) + 1e-6)
    for episode, score in zip(graph.complete(), scores, strict=True):
        first = graph.nodes[graph.path(episode.id)[0]]
        # The probe's plugin likes plans with even characters.
        bonus = sum(ord(c) % 2 == 0 for c in first.text) / 10 if first.role == "planner" else 0.0
        rewards = sum(graph.nodes[i].reward for i in graph.path(episode.id))
        assert episode.ret == pytest.approx(rewards + bonus)
        for node in graph.path(episode.id):
            now = graph.nodes[node].policy == DEFAULT_POLICY
            assert graph.credit[node] == pytest.approx(score if now else 0.0, abs=1e-4)


def check_questions(path):
    """A question, its judge, two answers and a judge of each; a judge's plan is what it judges."""
    if "question" not in path[0].extra:
        assert len(path) == 1 and path[0].extra["failure"] and path[0].reward == 0
        return
    assert [node.role for node in path] == ["proposer", "judge", "solver", "solver", "judge", "judge"]
    assert [node.plan for node in path[1:]] == [path[i].id for i in (0, 0, 0, 2, 3)]
    for node in path[2:4]:
        verdict = next(judge.extra["judge"] for judge in path[4:] if judge.plan == node.id)
        assert node.reward == pytest.approx(0.5 * verdict + 0.5 * node.extra["format"])


def check_skills(path):
    """Three actions, and where they were right a skill, which is written below the last one and verified."""
    assert [node.role for node in path[:3]] == ["solver"] * 3 and all(node.plan == -1 for node in path[:3])
    assert len(path) == 3 or path[2].done
    assert [node.plan for node in path[3:]] == [node.id for node in path[2:-1]][: len(path) - 3]
    if len(path) == 5:
        written, verified = path[3:]
        assert verified.messages[0].content == f"x:{written.extra['new_skill']}"
        assert written.extra["verified"] == verified.extra["verified"] in (0, 1)


def check_memory(path):
    """The manager reads two pieces, each in a new context with the memory; the answerer reads the memory alone."""
    assert [node.role for node in path] == ["manager", "manager", "answerer"]
    bank = Bank(entries=1000, longest=400)
    for node, read in zip(path, ("m:{}a", "m:{}b", "x:{}"), strict=True):
        assert node.context == -1 and node.messages[0].content == read.format(bank.shown("", 60))
        if node.role == "manager":
            for operation in [each for each in re.split(r"[;\n]", node.text) if each.strip()][:8]:
                bank.apply(operation)
        assert node.extra["memory_size"] == len(bank)


def check_structure(name, graph):
    """Plans, segments and contexts of each worker."""
    for episode in graph.complete():
        path = [graph.nodes[i] for i in graph.path(episode.id)]
        if name == "switch_keep":
            assert all(node.context == -1 for node in path)
            starts = np.cumsum([0, *(node.extra["switch"] for node in path[1:])])
            assert [node.segment for node in path] == starts.tolist()
            for node in path:
                assert "failure" not in node.extra or node.masks["action"] == [[0, len(node.action)]]
                assert node.extra["format"] <= ("failure" not in node.extra)
            continue
        if name == "self_play":
            # Each seat's last turn has its own reward: the second one's is twice the first one's.
            first, second = list(dict.fromkeys(node.role for node in path))
            assert [node.role for node in path] == [first, second, first]
            assert path[1].reward == 2 * path[2].reward and path[0].reward == 0
            # A seat of the past is played by the weights after the first step, and they are not trained.
            assert [node.policy != DEFAULT_POLICY for node in path] == [False, second == "then", False]
            assert path[1].trained == (second != "then") and path[1].extra["opponent"] == (second == "then")
            continue
        if name == "proposer_solver_judge":
            check_questions(path)
            continue
        if name == "skills":
            check_skills(path)
            continue
        if name == "memory":
            check_memory(path)
            continue
        plan = path[0].id
        for node in path:
            if node.level == 0:
                plan = node.id
                assert node.plan == -1
            else:
                assert node.plan == plan
        if name == "team":
            helpers = [node.agent for node in path if node.level]
            assert helpers == [f"e {number}" for number in range(1, len(helpers) + 1)]
            assert all(node.role == "lead" for node in path if node.level == 0)
            continue
        if name == "delegation" and len(path) > 1:
            assert [node.agent for node in path[1:]] == ["e"] * (len(path) - 1)
        if name == "agent_flow":
            assert [node.level for node in path] == [0, 1] * 3 and all(node.context == -1 for node in path)
        if name == "dual_loop":
            assert [node.level for node in path] == [0, 1, 1, 0, 1]
