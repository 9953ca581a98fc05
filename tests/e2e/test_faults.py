"""What breaks costs what it must and nothing more; nothing is dropped in silence. Lost servers are in test_himac.py."""

from __future__ import annotations

import psutil
import pytest
import torch

from verl_hier.compat.launch import read_metrics

TURNS = 3
"""Of each whole episode of the probe's world."""


@pytest.mark.slow
def test_failing_environments_cost_their_own_episodes_and_a_full_disk_the_file(train, tmp_path):
    """Environments that raise, hang or die, a store that cannot be written, and tokens that an estimator leaves out."""
    (tmp_path / "graphs").write_text("a file where a folder is wanted")
    run = train(
        "grpo_bytes",
        [
            "+hier.environment.faults=true",
            "hier.rollout.time_limit_s=2",
            "hier.rollout.max_failed_share=1.0",
            "actor_rollout_ref.rollout.n=16",
            "trainer.total_training_steps=2",
            f"hier.store.path={tmp_path}/graphs",
            "hier.estimator={name: first_tokens}",
            "hier.guards.weight_by=token",
            # One optimiser step, so that the ratio is 1.
            "actor_rollout_ref.actor.ppo_mini_batch_size=2",
            "actor_rollout_ref.actor.policy_loss.loss_mode=write_gradients",
        ],
    )
    assert run.code == 0, run.log[-3000:]
    for step in run.steps:
        kinds = ("raised", "timeout", "killed", "replay_mismatch")
        faults = [step.get(f"hier/counts/failed_{kind}", 0) for kind in kinds]
        assert sum(faults) == step["hier/episodes/failed"]
        assert faults[-1] == 0
        assert step["hier/episodes/count"] == 2 * 16
        assert step["hier/rows/trained"] == 2 * 16 - step["hier/episodes/failed"]
    kinds = {name for step in run.steps for name in step if name.startswith("hier/counts/failed_")}
    assert len(kinds) >= 2, kinds
    assert run.metric("hier/store/failed") == [1.0, 1.0]
    assert "The run goes on without it (hier.store.path)" in run.log
    check_kept_tokens([torch.load(file) for file in sorted((tmp_path / "run" / "probe").glob("*.pt"))], run.steps)


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["HierAgentLoopWorker", "SimpleStorageUnit"])
def test_a_process_that_holds_tasks_and_dies_ends_the_run_with_a_sentence(train, tmp_path, victim):
    """Its tasks would stay under way for ever; the keeper's ten minutes of silence do not come, because verl counts
    them every minute."""
    killed = []

    def kill(process):
        if not killed and read_metrics(tmp_path / "run" / "metrics_0.jsonl"):
            below = psutil.Process(process.pid).children(recursive=True)
            (found,) = (each for each in below if each.is_running() and each.name().startswith(f"ray::{victim}"[:15]))
            found.kill()
            killed.append(found.pid)
        return False

    run = train("grpo_bytes", ["trainer.total_training_steps=100000"], watch=kill)
    assert killed and run.code == 1
    assert f"{victim} (pid {killed[0]}, " in run.log and "is gone, perhaps for want of memory; start" in run.log


def check_kept_tokens(records, steps):
    """The first token of each turn learns alone, and verl's loss is a mean over these and no others.

    The credit is 1 and so is the ratio: the loss of a step is minus a mean of log-probs.
    """
    records = iter(records)
    for step in steps:
        turns = int(TURNS * step["hier/rows/trained"])
        kept: list[float] = []
        while len(kept) < turns:
            record = next(records)
            mask = record["mask"].bool()
            assert not record["gradient"][~mask].any()
            kept += record["gradient"][mask].tolist()
        assert kept == pytest.approx([-1 / turns] * turns) and step["hier/tokens/generated"] > turns
    assert next(records, None) is None
