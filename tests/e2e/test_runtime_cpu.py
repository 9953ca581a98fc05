"""verl's own trainers on the CPU: the real entry points, Ray and all. About a minute each."""

import fcntl
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytestmark = pytest.mark.e2e

RECIPES = Path(__file__).parents[2] / "recipes"
LIMIT_SECONDS = 580


@contextmanager
def one_run_at_a_time() -> Iterator[None]:
    """Two runs on a small machine only make both time out."""
    with open("/tmp/verl_e2e.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def run(command: list[str], folder: Path) -> str:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "VERL_PLATFORM": "cpu"}
    with one_run_at_a_time():
        result = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=LIMIT_SECONDS
        )
    output = result.stdout + result.stderr
    assert result.returncode == 0, output[-6000:]
    return output


def train(toy: Path, folder: Path, *overrides: str) -> list[dict[str, float]]:
    """Run verl's PPO trainer for two steps; the metrics of each step."""
    command = [
        *(sys.executable, "-m", "verl.trainer.main_ppo", f"hydra.searchpath=[file://{RECIPES}]", "+hier/size=cpu"),
        f"data.train_files={toy}/train.parquet",
        f"data.val_files={toy}/train.parquet",
        *("data.train_batch_size=4", "data.max_prompt_length=64", "data.max_response_length=16"),
        *(f"actor_rollout_ref.model.path={toy}", f"critic.model.path={toy}"),
        f"reward.custom_reward_function.path={toy}/reward.py",
        *("actor_rollout_ref.rollout.n=4", "actor_rollout_ref.actor.ppo_mini_batch_size=4"),
        *("actor_rollout_ref.actor.optim.lr=1e-3", "critic.optim.lr=1e-3"),
        *("trainer.total_training_steps=2", "trainer.save_freq=-1", "trainer.test_freq=-1"),
        f"trainer.default_local_dir={folder}/checkpoints",
        *overrides,
    ]
    return steps_of(run(command, folder))


def steps_of(output: str) -> list[dict[str, float]]:
    number = r"(-?\d+(?:\.\d+)?(?:e[+-]?\d+)?)"
    lines = re.findall(r"step:\d+ - .*", output)
    return [
        {name: float(value) for name, value in re.findall(rf"([\w./()@-]+):{number}(?= - |$)", line)} for line in lines
    ]


def check(steps: list[dict[str, float]]) -> None:
    assert len(steps) == 2
    for step in steps:
        assert step["training/rollout_probs_diff_max"] < 1e-6, "rollout and actor disagree: weights or masks differ"
        assert step["actor/grad_norm"] > 0


def test_grpo(toy, tmp_path):
    check(train(toy, tmp_path, "algorithm.adv_estimator=grpo"))


def test_ppo_with_critic_reference_policy_validation_and_checkpoint(toy, tmp_path):
    steps = train(
        toy,
        tmp_path,
        "algorithm.adv_estimator=gae",
        "actor_rollout_ref.rollout.n=2",
        "actor_rollout_ref.actor.use_kl_loss=True",
        "trainer.save_freq=2",
        "trainer.test_freq=2",
    )
    check(steps)
    assert all(step["critic/grad_norm"] > 0 for step in steps)
    assert steps[1]["actor/kl_loss"] > 0
    assert (tmp_path / "checkpoints" / "global_step_2" / "critic").is_dir()


def test_two_ranks_with_two_replicas(toy, tmp_path):
    check(train(toy, tmp_path, "algorithm.adv_estimator=grpo", "trainer.n_gpus_per_node=2"))


@pytest.mark.slow
def test_merged_lora(toy, tmp_path):
    steps = train(
        toy,
        tmp_path,
        "algorithm.adv_estimator=grpo",
        "actor_rollout_ref.model.lora_rank=4",
        "actor_rollout_ref.model.lora.merge=True",
    )
    # verl rounds merged weights to bfloat16 on their way to the server.
    assert len(steps) == 2 and all(step["training/rollout_probs_diff_max"] < 1e-2 for step in steps)


@pytest.mark.slow
def test_colocated_asynchronous_trainer(toy, tmp_path):
    steps = train(toy, tmp_path, "algorithm.adv_estimator=grpo", "trainer.v1.trainer_mode=colocate_async")
    assert len(steps) == 2 and all(step["actor/grad_norm"] > 0 for step in steps)


@pytest.mark.slow
def test_separate_asynchronous_trainer_over_gloo(toy, tmp_path):
    steps = train(
        toy,
        tmp_path,
        "algorithm.adv_estimator=grpo",
        "trainer.v1.trainer_mode=separate_async",
        "trainer.v1.separate_async.parameter_sync_step=2",
        "actor_rollout_ref.actor.ppo_mini_batch_size=2",
        "actor_rollout_ref.rollout.nnodes=1",
        "actor_rollout_ref.rollout.n_gpus_per_node=1",
        "actor_rollout_ref.rollout.checkpoint_engine.backend=gloo",
    )
    assert len(steps) == 2 and all(step["actor/grad_norm"] > 0 for step in steps)


@pytest.mark.parametrize("ranks", [1, 2])
def test_sft_under_torchrun(toy, tmp_path, ranks):
    output = run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={ranks}"),
            *("-m", "verl.trainer.sft_trainer", f"data.train_files={toy}/sft.parquet", "data.train_batch_size=16"),
            *("data.micro_batch_size_per_gpu=8", "data.max_length=128", "data.num_workers=0", f"model.path={toy}"),
            *("+model.override_config.attn_implementation=sdpa", "model.use_remove_padding=False"),
            *("engine.strategy=fsdp2", "engine.use_torch_compile=False", "trainer.device=cpu"),
            *("+engine.mixed_precision.param_dtype=fp32", "+engine.mixed_precision.reduce_dtype=fp32"),
            *("trainer.logger=[console]", "trainer.total_training_steps=4", "optim.lr=1e-3"),
            f"trainer.default_local_dir={tmp_path}/checkpoints",
        ],
        tmp_path,
    )
    losses = [step["train/loss"] for step in steps_of(output)]
    assert len(losses) == 4 and losses == sorted(losses, reverse=True)
