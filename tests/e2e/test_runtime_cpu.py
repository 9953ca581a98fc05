"""verl's own trainers on the CPU, without a trainer of ours; GRPO is in test_parity.py."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.fixtures.toy_task import toy as toy
from tests.fixtures.trainer import Run, Trainer

pytestmark = pytest.mark.slow


def stock(train: Trainer, toy: Path, *overrides: str) -> Run:
    """Two steps of verl's PPO trainer."""
    run = train(
        "ppo_trainer",
        [
            "+hier/size=cpu",
            *(f"data.train_files={toy}/train.parquet", f"data.val_files={toy}/train.parquet"),
            *("data.train_batch_size=4", "data.max_prompt_length=64", "data.max_response_length=16"),
            *(f"actor_rollout_ref.model.path={toy}", f"critic.model.path={toy}"),
            f"reward.custom_reward_function.path={toy}/reward.py",
            *("actor_rollout_ref.rollout.n=4", "actor_rollout_ref.actor.ppo_mini_batch_size=4"),
            *("actor_rollout_ref.actor.optim.lr=1e-3", "critic.optim.lr=1e-3"),
            *("trainer.total_training_steps=2", "trainer.save_freq=-1", "trainer.test_freq=-1"),
            "trainer.logger=[console,file]",
            *overrides,
        ],
    )
    assert run.code == 0, run.log[-6000:]
    run.steps = [step for step in run.steps if "actor/grad_norm" in step]
    assert len(run.steps) == 2 and min(run.metric("actor/grad_norm")) > 0
    return run


def test_ppo_with_critic_reference_policy_validation_and_checkpoint_on_two_ranks(train, toy, tmp_path):
    """Two FSDP ranks and two rollout replicas."""
    run = stock(
        train,
        toy,
        "algorithm.adv_estimator=gae",
        "actor_rollout_ref.rollout.n=2",
        "actor_rollout_ref.actor.use_kl_loss=True",
        "trainer.n_gpus_per_node=2",
        "trainer.save_freq=2",
        "trainer.test_freq=2",
    )
    assert max(run.metric("training/rollout_probs_diff_max")) < 1e-6, "weights or masks differ"
    assert len(run.metric("critic/grad_norm")) == 2 and min(run.metric("critic/grad_norm")) > 0
    assert run.metric("actor/kl_loss")[1] > 0
    assert (tmp_path / "run" / "checkpoints" / "global_step_2" / "critic").is_dir()


@pytest.mark.long
def test_merged_lora(train, toy):
    lora = ("actor_rollout_ref.model.lora_rank=4", "actor_rollout_ref.model.lora.merge=True")
    run = stock(train, toy, "algorithm.adv_estimator=grpo", *lora)
    # verl rounds merged weights to bfloat16 on their way to the server.
    assert max(run.metric("training/rollout_probs_diff_max")) < 1e-2


@pytest.mark.long
def test_colocated_asynchronous_trainer(train, toy):
    stock(train, toy, "algorithm.adv_estimator=grpo", "trainer.v1.trainer_mode=colocate_async")


@pytest.mark.long
def test_separate_asynchronous_trainer_over_gloo(train, toy):
    stock(
        train,
        toy,
        "algorithm.adv_estimator=grpo",
        "trainer.v1.trainer_mode=separate_async",
        "trainer.v1.separate_async.parameter_sync_step=2",
        "actor_rollout_ref.actor.ppo_mini_batch_size=2",
        "actor_rollout_ref.rollout.nnodes=1",
        "actor_rollout_ref.rollout.n_gpus_per_node=1",
        "actor_rollout_ref.rollout.checkpoint_engine.backend=gloo",
    )


def test_sft_under_torchrun_on_two_ranks(train, toy, tmp_path):
    run = train.run(
        [
            *("torch.distributed.run", "--standalone", "--nproc_per_node=2"),
            *("-m", "verl.trainer.sft_trainer", f"data.train_files={toy}/sft.parquet", "data.train_batch_size=16"),
            *("data.micro_batch_size_per_gpu=8", "data.max_length=128", "data.num_workers=0", f"model.path={toy}"),
            *("+model.override_config.attn_implementation=sdpa", "model.use_remove_padding=False"),
            *("engine.strategy=fsdp2", "engine.use_torch_compile=False", "trainer.device=cpu"),
            *("+engine.mixed_precision.param_dtype=fp32", "+engine.mixed_precision.reduce_dtype=fp32"),
            *("trainer.logger=[console]", "trainer.total_training_steps=4", "optim.lr=1e-3"),
            f"trainer.default_local_dir={tmp_path}/checkpoints",
        ]
    )
    assert run.code == 0, run.log[-6000:]
    losses = [float(loss) for loss in re.findall(r"step:\d+ - .*\btrain/loss:(\d+\.\d+)", run.log)]
    assert len(losses) == 4 and losses == sorted(losses, reverse=True)
