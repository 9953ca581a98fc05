"""With a flat worker and verl's estimator, `hier_sync` is `sync`: same advantages, same parameters, bit for bit."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from verl_hier.graph import read_graphs


def overrides(model: Path) -> list[str]:
    return [
        f"data.train_files={model}/tasks.parquet",
        f"data.val_files={model}/tasks.parquet",
        f"reward.custom_reward_function.path={model}/reward.py",
        "reward.custom_reward_function.name=compute_score",
        "data.train_batch_size=4",
        "data.max_prompt_length=64",
        "data.max_response_length=16",
        "data.shuffle=False",
        "actor_rollout_ref.rollout.n=4",
        "actor_rollout_ref.actor.optim.lr=1e-3",
        "actor_rollout_ref.rollout.engine_kwargs.transformers.deterministic=true",
        "trainer.logger=[console,file]",
        "trainer.test_freq=-1",
        "algorithm.adv_estimator=grpo",
        "actor_rollout_ref.rollout.calculate_log_probs=True",
        "actor_rollout_ref.actor.ppo_mini_batch_size=2",
        "trainer.total_training_steps=3",
        "trainer.save_freq=3",
    ]


def parameters(folder: Path) -> dict[str, torch.Tensor]:
    (file,) = folder.glob("checkpoints/global_step_3/actor/model_world_size_1_rank_0.pt")
    state = torch.load(file, weights_only=False)
    return {name: value.to_local() if hasattr(value, "to_local") else value for name, value in state.items()}


def test_hier_sync_is_sync(train, byte_model, tmp_path):
    runs, records = {}, {}
    store = f"hier.store.path={tmp_path}/graphs"
    for name, recipe, mode in (
        ("stock", "ppo_trainer", ["+hier/size=cpu", "trainer.v1.trainer_mode=probe_sync"]),
        ("hier", "flat", ["trainer.v1.trainer_mode=probe_hier_sync", store]),
    ):
        runs[name] = train(recipe, [*mode, *overrides(byte_model)], name)
        assert runs[name].code == 0, runs[name].log[-3000:]
        assert max(runs[name].metric("training/rollout_probs_diff_max")) < 1e-6, "weights or masks differ"
        assert min(runs[name].metric("actor/grad_norm")) > 0
        files = [tmp_path / name / "probe" / f"step_{step}.pt" for step in (1, 2, 3)]
        records[name] = [torch.load(file) for file in files]
    for stock, ours in zip(records["stock"], records["hier"], strict=True):
        assert any(row.abs().max() > 0 for row in stock["advantages"])
        for field in ("responses", "response_mask", "advantages", "old_log_probs"):
            assert all(torch.equal(a, b) for a, b in zip(stock[field], ours[field], strict=True)), field
    for number, step in enumerate(records["hier"], start=1):
        graphs = list(read_graphs(tmp_path / f"graphs/step_{number:06d}"))
        credit = [value for graph in graphs for value in graph.credit]
        means = [
            float(row[mask > 0].mean()) for row, mask in zip(step["advantages"], step["response_mask"], strict=True)
        ]
        assert sorted(credit) == pytest.approx(sorted(means)), "stored graphs have the credit that verl gave"
    stock, ours = parameters(tmp_path / "stock"), parameters(tmp_path / "hier")
    assert stock.keys() == ours.keys()
    assert all(torch.equal(stock[name], ours[name]) for name in stock)
    assert all(a == b for a, b in zip(runs["stock"].metric("actor/grad_norm"), runs["hier"].metric("actor/grad_norm")))
