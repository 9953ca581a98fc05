"""Methods whose columns come from forward passes of the trainer, through stock verl."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.fixtures.trainer import Trainer
from verl_hier.graph import RolloutGraph, read_graphs

pytestmark = pytest.mark.slow

RECIPE = """
defaults: [ppo_trainer, hier/base, hier/method: {method}, hier/size/cpu, _self_]
hier:
  plugins: {{probe: true}}
  environment: {{name: bytes, bar: 0.2}}
  worker: {{prompt: "{{observation}}", observation_prompt: "{{observation}}", window_prompt: "{{observation}}"}}
  rollout: {{template: plain, max_tokens_per_turn: 24, environment_processes: 1}}
  {more}
actor_rollout_ref:
  rollout: {{n: 4, engine_kwargs: {{transformers: {{deterministic: true}}}}}}
  actor: {{ppo_mini_batch_size: 4, use_kl_loss: false, optim: {{lr: 1e-3}}}}
critic: {{optim: {{lr: 1e-3, weight_decay: 0.0}}}}
data: {{train_batch_size: 4, max_prompt_length: 64, max_response_length: 192, shuffle: false}}
trainer:
  experiment_name: "{method}_bytes"
  total_training_steps: 3
  test_freq: -1
  save_freq: -1
  logger: [console, file]
"""


@pytest.mark.long
def test_igpo_asks_the_policy_for_the_true_answer(
    train: Trainer, byte_model: Path, probes: Path, tmp_path: Path
) -> None:
    more = "estimator: {form: paper}\n  probes: {true_answer: {prefix: '=', suffix: ''}}"
    (probes / "igpo_bytes.yaml").write_text(RECIPE.format(method="igpo", more=more))
    run = train("igpo_bytes", [f"hier.store.path={tmp_path}/graphs"])
    steps = run.trained_steps()
    assert len(steps) == 3 and min(step["actor/grad_norm"] for step in steps) > 0
    graphs = list(read_graphs(tmp_path / "graphs" / "step_000001"))
    turns = sum(len(graph.nodes) for graph in graphs)
    assert len(graphs) == 4 and steps[0]["hier/probes/true_answer/questions"] == turns
    likelihood = Likelihood(byte_model)
    for graph in graphs:
        check_information_gain(graph, likelihood)


def test_the_second_model_of_istar_learns_and_a_resumed_run_goes_on(
    train: Trainer, probes: Path, tmp_path: Path
) -> None:
    (probes / "istar_bytes.yaml").write_text(RECIPE.format(method="istar", more=""))
    whole = train("istar_bytes", ["trainer.save_freq=2"])
    steps = whole.trained_steps()
    assert len(steps) == 3 and min(step["actor/grad_norm"] for step in steps) > 0
    # It begins as the policy does, so that nothing is rewarded and all pairs are ties.
    assert steps[0]["hier/process_reward/reward_mean"] == pytest.approx(0, abs=1e-5)
    assert steps[0]["hier/process_reward/pairs"] > 0 and steps[0]["critic/grad_norm"] > 0
    assert steps[0]["hier/process_reward/loss"] == pytest.approx(np.log(2), abs=1e-5)
    assert abs(steps[1]["hier/process_reward/reward_mean"]) > 1e-5
    assert not any(name.startswith("critic/values/") for step in steps for name in step)
    checkpoints = tmp_path / "run" / "checkpoints"
    resume = ["trainer.resume_mode=resume_path", f"trainer.resume_from_path={checkpoints / 'global_step_2'}"]
    (resumed,) = train("istar_bytes", resume, "resumed").trained_steps()
    kinds = ("critic/", "hier/process_reward/", "hier/episodes", "actor/grad")
    names = [name for name in resumed if name.startswith(kinds) and "/perf/" not in name]
    assert len(names) > 10
    for name in names:
        np.testing.assert_allclose(resumed[name], steps[2][name], rtol=1e-4, atol=1e-6, err_msg=name)


class Likelihood:
    """exp of the mean log-prob of the answer, one context at a time."""

    def __init__(self, folder: Path) -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self._model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self._prefix, self._answer = (AutoTokenizer.from_pretrained(folder).encode(text) for text in ("=", "ab"))

    def __call__(self, context: list[int]) -> float:
        tokens = torch.tensor([[*context, *self._prefix, *self._answer]])
        with torch.no_grad():
            found = self._model(tokens).logits[0, :-1].log_softmax(-1)
        each = found[torch.arange(tokens.shape[1] - 1), tokens[0, 1:]]
        return float(np.exp(each[-len(self._answer) :].mean().item()))


def check_information_gain(graph: RolloutGraph, likelihood: Any) -> None:
    """The paper's form, slowly: gains and returns of the task, z-scored in one pool, summed from each turn on."""
    paths = [graph.path(episode.id) for episode in graph.complete()]
    rewards = []
    for path, episode in zip(paths, graph.complete(), strict=True):
        context: list[int] = []
        sure = []
        for node in (graph.nodes[number] for number in path):
            sure.append(likelihood([*context, *node.observation]))
            context += [*node.observation, *node.action]
        rewards.append([*np.diff(sure), episode.ret])
    pool = np.concatenate(rewards)
    for path, earned in zip(paths, rewards, strict=True):
        scores = (np.asarray(earned) - pool.mean()) / (pool.std(ddof=1) + 1e-6)
        expected = np.cumsum(scores[::-1])[::-1]
        np.testing.assert_allclose([graph.credit[number] for number in path], expected, rtol=1e-3, atol=1e-4)
