"""Critics through stock verl: HiPER's three heads, one value for RAGEN's two levels and MARFT's chain of agents, and
ArCHer's Q and V, which learn from earlier steps too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.fixtures.trainer import Trainer
from verl_hier.graph import read_graphs

from .test_workers import speaker as speaker

pytestmark = pytest.mark.slow

HEADS = ("low", "high", "term")
RECIPE = """
defaults: [ppo_trainer, hier/base, hier/method: {method}, hier/size/cpu, _self_]
hier:
  plugins: {{probe: true}}
  environment: {{name: bytes, steps: 4}}
  worker: {worker}
  schedule: {schedule}
  rollout: {{template: plain, max_tokens_per_turn: 72, environment_processes: 1}}
actor_rollout_ref:
  rollout:
    n: 4
    engine_kwargs: {{transformers: {{deterministic: true}}}}
  actor: {{ppo_mini_batch_size: 4, use_kl_loss: false, optim: {{lr: 1e-4}}}}
critic: {{optim: {{lr: 3e-3}}, cliprange_value: 10.0, ppo_epochs: {epochs}}}
data: {{train_batch_size: 4, max_prompt_length: 64, max_response_length: 192, shuffle: false}}
trainer: {{experiment_name: {method}_bytes, total_training_steps: 3, test_freq: -1, logger: [console, file]}}
"""
JOINT = {"name": "joint"}
KEEPER = {"name": "switch_keep", "prompt": "s:{observation}", "history": 1, "window_prompt": "s:{observation}"}
SPEAKER = {"name": "react", "prompt": "x:{observation}", "observation_prompt": "x:"}
AGENTS = {
    "name": "team",
    "roles": {
        "reasoner": {"level": 0, "prompt": "x:{instruction}", "later_prompt": "x:"},
        "actor": {"level": 1, "prompt": "x:{said}", "later_prompt": "x:", "action": "{content}"},
    },
    "topology": {"kind": "sequence", "order": ["reasoner", "actor"]},
}


def write_recipe(probes: Path, method: str, worker: dict[str, Any], schedule: dict[str, Any], epochs: int) -> str:
    """Put a recipe of a method beside the probes; returns its name."""
    text = RECIPE.format(method=method, worker=json.dumps(worker), schedule=json.dumps(schedule), epochs=epochs)
    (probes / f"{method}_bytes.yaml").write_text(text)
    return f"{method}_bytes"


def test_three_heads_learn_alike_on_two_ranks_and_in_a_resumed_run(
    train: Trainer, speaker: Path, probes: Path, tmp_path: Path
) -> None:
    name = write_recipe(probes, "hiper", KEEPER, JOINT, epochs=4)
    overrides = [f"actor_rollout_ref.model.path={speaker}", "trainer.save_freq=2"]
    whole = train(name, [*overrides, f"hier.store.path={tmp_path}/graphs"])
    steps = whole.trained_steps()
    assert len(steps) == 3 and min(step["critic/grad_norm"] for step in steps) > 0
    for head in HEADS:
        assert min(step[f"critic/{head}/vf_loss"] for step in steps) > 0
    check_places(steps, tmp_path / "graphs")
    # Heads begin at 0, and have moved by the second step.
    assert [steps[0][f"hier/critic/{head}/value_mean"] for head in HEADS] == [0, 0, 0]
    assert all(step[f"hier/critic/{head}/value_mean"] != 0 for step in steps[1:] for head in HEADS)
    checkpoints = tmp_path / "run" / "checkpoints"
    assert (checkpoints / "global_step_2" / "critic").is_dir()
    (resumed,) = train(
        name,
        [
            *overrides,
            "trainer.resume_mode=resume_path",
            f"trainer.resume_from_path={checkpoints / 'global_step_2'}",
        ],
        "resumed",
    ).trained_steps()
    kinds = ("critic/", "hier/critic/", "hier/episodes", "actor/grad")
    names = [key for key in resumed if key.startswith(kinds) and "/perf/" not in key]
    assert len(names) > 20
    for key in names:
        np.testing.assert_allclose(resumed[key], steps[2][key], rtol=1e-5, atol=1e-7, err_msg=key)
    ranks = ["trainer.n_gpus_per_node=2", "trainer.total_training_steps=2", "trainer.save_freq=-1"]
    two = train(name, [*overrides, *ranks], "two_ranks")
    assert two.code == 0, two.log[-4000:]
    values = [f"hier/critic/{head}/value_mean" for head in HEADS]
    for key in (*values, "critic/grad_norm", "actor/grad_norm", "hier/tokens/generated"):
        np.testing.assert_allclose(two.metric(key), whole.metric(key)[:2], rtol=1e-3, atol=1e-6, err_msg=key)


def check_places(steps: list[dict[str, float]], store: Path) -> None:
    """A place a turn for the low and the termination head, and one a segment for the high one."""
    for number, step in enumerate(steps, 1):
        nodes = [node for graph in read_graphs(store / f"step_{number:06d}") for node in graph.nodes]
        tokens = sum(len(node.action) for node in nodes)
        starts = sum(node.turn == 0 or bool(node.extra["switch"]) for node in nodes)
        for head, places in zip(HEADS, (len(nodes), starts, len(nodes)), strict=True):
            assert step[f"hier/critic/{head}/trained_share"] == pytest.approx(places / tokens, rel=1e-6)


def test_q_and_v_learn_from_a_replay_and_a_resumed_run_goes_on(
    train: Trainer, speaker: Path, probes: Path, tmp_path: Path
) -> None:
    name = write_recipe(probes, "archer", SPEAKER, JOINT, epochs=1)
    replay = {"transitions": 130, "updates": 3, "batch": 6, "baseline": True}
    overrides = [f"actor_rollout_ref.model.path={speaker}", "trainer.save_freq=2", "trainer.critic_warmup=2"]
    overrides += [f"hier.replay.{option}={value}" for option, value in replay.items()]
    whole = train(name, [*overrides, f"hier.store.path={tmp_path}/graphs"])
    assert whole.code == 0, whole.log[-4000:]
    steps = [step for step in whole.steps if "critic/grad_norm" in step]
    # The critic learns alone in the first step.
    assert len(steps) == 3 and ["actor/grad_norm" in step for step in steps] == [False, True, True]
    assert min(step[f"critic/{head}/vf_loss"] for step in steps for head in ("q1", "q2", "v1", "v2", "baseline")) > 0
    assert not any(name.startswith("critic/values/") for step in steps for name in step)
    # A step has up to 64 turns, of four tasks with four episodes of up to four turns: the oldest steps leave.
    assert steps[0]["hier/replay/staleness"] == 0 < steps[1]["hier/replay/staleness"]
    assert all(step["hier/replay/transitions"] <= 130 for step in steps)
    graphs = list(read_graphs(tmp_path / "graphs" / "step_000003"))
    credit = [value for graph in graphs for value in graph.credit]
    assert np.std(credit) > 0
    checkpoints = tmp_path / "run" / "checkpoints"
    resume = ["trainer.resume_mode=resume_path", f"trainer.resume_from_path={checkpoints / 'global_step_2'}"]
    # In the folder of the run, which has the replay.
    (resumed,) = train(name, [*overrides, *resume]).trained_steps()
    names = [key for key in resumed if key.startswith(("critic/", "hier/replay/", "hier/credit/", "actor/grad"))]
    assert len(names) > 12
    for key in names:
        np.testing.assert_allclose(resumed[key], steps[2][key], rtol=1e-4, atol=1e-7, err_msg=key)


@pytest.mark.parametrize(
    ("method", "worker", "schedule", "actor_steps"),
    [
        pytest.param("ragen", SPEAKER, JOINT, 3, marks=pytest.mark.long),
        # The critic learns alone in the first step, and then one agent a step.
        ("marft", AGENTS, {"name": "agents", "period": 1, "roles": ["reasoner", "actor"]}, 2),
    ],
)
def test_one_value_learns_and_credits(
    train: Trainer,
    speaker: Path,
    probes: Path,
    tmp_path: Path,
    method: str,
    worker: dict[str, Any],
    schedule: dict[str, Any],
    actor_steps: int,
) -> None:
    name = write_recipe(probes, method, worker, schedule, epochs=2)
    store = tmp_path / "graphs"
    run = train(name, [f"actor_rollout_ref.model.path={speaker}", f"hier.store.path={store}"])
    assert run.code == 0, run.log[-4000:]
    steps = [step for step in run.steps if "critic/grad_norm" in step]
    assert len(steps) == 3 and min(step["critic/vf_loss"] for step in steps) > 0
    assert sum("actor/grad_norm" in step for step in steps) == actor_steps
    assert all(step["actor/grad_norm"] > 0 for step in steps if "actor/grad_norm" in step)
    # Only MARFT looks how far the policy has moved, and it has not before the one optimiser step of a batch.
    limited = [step["actor/left_out"] for step in steps if "actor/left_out" in step]
    assert limited == ([0.0] * actor_steps if method == "marft" else [])
    for number in range(1, 4):
        graphs = list(read_graphs(store / f"step_{number:06d}"))
        pairs = [pair for graph in graphs for pair in zip(graph.nodes, graph.credit, strict=True)]
        credited = {node.role for node, credit in pairs if credit}
        assert credited == ({"agent"} if method == "ragen" else {("reasoner", "actor")[(number - 1) % 2]})
