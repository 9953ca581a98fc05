"""Self-imitation through stock verl: good episodes of earlier steps train, none that is too old, and a resumed run has
what an uninterrupted one has."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.fixtures.trainer import Trainer
from verl_hier.training.options import SelfImitationOptions
from verl_hier.training.self_imitation import GoodEpisodes

pytestmark = pytest.mark.long

RECIPE = """
defaults: [ppo_trainer, hier/base, hier/method: spear, hier/size/cpu, _self_]
hier:
  plugins: {probe: true}
  environment: {name: bytes, steps: 2}
  worker: {name: react, prompt: "x:{observation}", observation_prompt: "x:"}
  rollout: {template: plain, max_tokens_per_turn: 16, environment_processes: 1}
  self_imitation: {rows: 8, fill: 0.5, limit: 64, max_age: 1, warmup: 4}
actor_rollout_ref:
  rollout:
    n: 4
    engine_kwargs: {transformers: {deterministic: true}}
  actor: {ppo_mini_batch_size: 2, optim: {lr: 1e-4, lr_scheduler_type: cosine}}
data: {train_batch_size: 4, max_prompt_length: 64, max_response_length: 96, shuffle: false}
trainer: {experiment_name: spear_bytes, total_training_steps: 3, test_freq: -1, logger: [console, file]}
"""
OPTIONS = SelfImitationOptions(rows=8, fill=0.5, limit=64, max_age=1, warmup=4)
PREFIX = "hier/self_imitation/"


def test_good_episodes_train_again_and_a_resumed_run_goes_on(train: Trainer, probes: Path, tmp_path: Path) -> None:
    (probes / "spear_bytes.yaml").write_text(RECIPE)
    whole = train("spear_bytes", ["trainer.save_freq=2"])
    steps = whole.trained_steps()
    trained = [step[f"{PREFIX}trained"] for step in steps]
    assert len(steps) == 3 and trained[0] == 0 and 0 < max(trained) <= OPTIONS.rows
    for step in steps:
        assert step[f"{PREFIX}kept"] > 0
        if step[f"{PREFIX}trained"]:
            assert step[f"{PREFIX}oldest"] == step[f"{PREFIX}age"] == 1 and step[f"{PREFIX}update/grad_norm"] > 0
    np.testing.assert_allclose([step[f"{PREFIX}weight"] for step in steps], [0.5 - 0.5**1.5, 0.5, 0.5 + 0.5**1.5])
    # The schedule of the learning rate takes one step for each step of the trainer.
    rates = [step["actor/lr"] for step in steps]
    np.testing.assert_allclose(rates, [1e-4 * (0.5 + 0.5 * np.cos(np.pi * n / 3)) for n in (1, 2, 3)], atol=1e-12)
    checkpoints = tmp_path / "run" / "checkpoints"
    resume = ["trainer.resume_mode=resume_path", f"trainer.resume_from_path={checkpoints / 'global_step_2'}"]
    (resumed,) = train("spear_bytes", ["trainer.save_freq=2", *resume], "resumed").trained_steps()
    names = [key for key in resumed if key.startswith((PREFIX, "hier/credit/", "actor/grad", "actor/pg"))]
    assert len(names) > 8
    for key in names:
        np.testing.assert_allclose(resumed[key], steps[2][key], rtol=1e-5, atol=1e-7, err_msg=key)
    once, again = GoodEpisodes(OPTIONS), GoodEpisodes(OPTIONS)
    once.load(checkpoints / "global_step_3")
    again.load(tmp_path / "resumed" / "checkpoints" / "global_step_3")
    assert [row.step for row in once.rows] == [row.step for row in again.rows] and once.rows[0].step >= 2
    for name in ("response", "mask", "score", "credit"):
        for mine, other in zip(once.rows, again.rows, strict=True):
            assert np.array_equal(getattr(mine, name), getattr(other, name)), name
