"""The asynchronous trainers: HiMAC through verl's `colocate_async` and `separate_async` with our mixin."""

from __future__ import annotations

import pytest

from verl_hier.recipe.compose import overridden

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


@pytest.mark.parametrize(
    "mode",
    [
        pytest.param("hier_colocate_async", marks=pytest.mark.long),
        pytest.param("hier_separate_async", marks=pytest.mark.slow),
    ],
)
def test_rows_and_credit_arrive_whatever_the_trainer(train, examples, mode):
    """With the estimator of an installed example package, which also reports a metric of its own."""
    estimator = overridden(["hier.plugins.role_median=true", "hier.estimator={name: role_median}"])
    steps = ["data.gen_batch_size=1", "trainer.total_training_steps=2"]
    run = train("himac_bytes", [f"trainer.v1.trainer_mode={mode}", *steps, *estimator, *MODES[mode]], site=examples)
    assert run.code == 0, run.log[-3000:]
    assert len(run.steps) == 2
    assert all(rows > 0 for rows in run.metric("hier/rows/trained"))
    # A group is rolled out under one phase and trained under it, also when it is trained a step later.
    for step in run.steps:
        assert ("hier/credit/planner/mean" in step) or ("hier/credit/executor/mean" in step)
    assert all(share <= 1 for share in run.metric("hier/groups/singleton_share"))
    assert run.metric("hier/role_median/kept_share") == [1, 1]
    assert max(run.metric("actor/grad_norm")) > 0
