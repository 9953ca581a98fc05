"""The asynchronous trainers: HiMAC through verl's `colocate_async` and `separate_async` with our mixin."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.slow

MODES = {
    "hier_colocate_async": [],
    "hier_separate_async": [
        # verl wants prompts of a step = parameter syncs x prompts of a mini-batch.
        "trainer.v1.separate_async.parameter_sync_step=2",
        "actor_rollout_ref.rollout.nnodes=1",
        "actor_rollout_ref.rollout.n_gpus_per_node=1",
        "actor_rollout_ref.rollout.checkpoint_engine.backend=gloo",
    ],
}


@pytest.mark.parametrize("mode", MODES)
def test_rows_and_credit_arrive_whatever_the_trainer(train, mode):
    run = train(
        "himac_bytes",
        [f"trainer.v1.trainer_mode={mode}", "data.gen_batch_size=1", "trainer.total_training_steps=2", *MODES[mode]],
    )
    assert run.code == 0, run.log[-3000:]
    assert len(run.steps) == 2
    assert all(rows > 0 for rows in run.metric("hier/rows/trained"))
    # A group is rolled out under one phase and trained under it, also when it is trained a step later.
    for step in run.steps:
        assert ("hier/credit/planner/mean" in step) or ("hier/credit/executor/mean" in step)
    assert all(share <= 1 for share in run.metric("hier/groups/singleton_share"))
