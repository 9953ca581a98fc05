"""What breaks costs what it must and nothing more; nothing is dropped in silence."""

from __future__ import annotations

import re

import psutil
import pytest

HINT = "rollout server is gone .*trainer\\.resume_mode"


@pytest.mark.slow
def test_failing_environments_cost_their_own_episodes_and_a_full_disk_the_file(train, examples, tmp_path):
    """Environments that raise, hang or die, a store that cannot be written, and the estimator of an example package."""
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
            *("+hier.plugins.baseline_gap=true", "hier.estimator.name=baseline_gap"),
        ],
        site=examples,
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
    check_learned(run)


@pytest.mark.slow
def test_a_lost_server_stops_the_run_and_it_can_be_resumed(train, examples, tmp_path):
    latest = tmp_path / "killed" / "checkpoints" / "latest_checkpointed_iteration.txt"
    estimator = ("+hier.plugins.role_median=true", "hier.estimator.name=role_median")
    killed = []

    def kill_servers(process):
        if latest.exists() and not killed:
            children = psutil.Process(process.pid).children(recursive=True)
            killed.extend(p for p in children if any("TransformersServer" in part for part in (p.name(), *p.cmdline())))
            for server in killed:
                server.kill()

    overrides = [*estimator, "trainer.save_freq=1"]
    lost = train("grpo_bytes", [*overrides, "trainer.total_training_steps=500"], "killed", kill_servers, examples)
    assert killed and lost.code != 0, lost.log[-3000:]
    assert re.search(HINT, lost.log), lost.log[-3000:]
    done = int(latest.read_text())
    again = train("grpo_bytes", [*overrides, f"trainer.total_training_steps={done + 1}"], "killed", site=examples)
    assert again.code == 0, again.log[-3000:]
    assert [step["step"] for step in again.steps] == [done + 1]
    check_learned(again)


def check_learned(run):
    """An estimator of an installed example package has credited the step."""
    assert run.metric("hier/credit/zero_share")[0] < 1
    assert run.metric("actor/grad_norm")[0] > 0
