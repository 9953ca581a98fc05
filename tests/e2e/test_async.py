"""The asynchronous trainers, verl's `colocate_async` and `separate_async` with our mixin: HiMAC, and slow tasks."""

from __future__ import annotations

import pytest

from verl_hier.graph import read_graphs
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


SLOW = [
    "hier.environment={name: dawdling}",
    "hier.rollout.time_limit_s=600",
    # One task replaces one that verl drops.
    "data.gen_batch_size=1",
    "trainer.v1.sampler.max_off_policy_threshold=2",
]


@pytest.mark.parametrize(
    "mode",
    [
        pytest.param("hier_colocate_async", marks=pytest.mark.long),
        pytest.param("hier_separate_async", marks=pytest.mark.slow),
    ],
)
def test_slow_tasks_are_trained_in_their_turn(train, tmp_path, mode):
    """Every fourth task ends after two that were launched later, and a run that is continued goes on in the order; the
    store has all tasks of a step, however many updates it has."""
    store = tmp_path / "graphs"
    overrides = [f"trainer.v1.trainer_mode={mode}", *SLOW, *MODES[mode], "hier.launch_order={}", "trainer.save_freq=3"]
    overrides.append(f"hier.store.path={store}")
    runs = [train("grpo_bytes", overridden([*overrides, f"trainer.total_training_steps={last}"])) for last in (3, 5)]
    assert [run.code for run in runs] == [0, 0], runs[-1].log[-3000:]
    first, rest = runs
    # A task earns its number, and nobody has overtaken anybody: the steps have trained 0 and 1, 2 and 3, and so on.
    steps = [*first.steps, *rest.steps]
    assert [step["hier/episodes/return_mean"] for step in steps] == [0.5, 2.5, 4.5, 6.5, 8.5]
    assert {step["hier/durations/overtaken_max"] for step in steps} == {0}
    assert first.metric("hier/durations/steps_max") == [0, 1, 1]
    assert not first.metric("hier/durations/dropped_s")
    assert {step["hier/groups/count"] for step in steps} == {2}
    assert {step["hier/episodes/count"] for step in steps} == {8}
    # What was rolled out before a run was continued, and not trained yet, is not in its store.
    for number, folder in enumerate(sorted(store.glob("step_*"))[:3]):
        graphs = [*read_graphs(folder)]
        assert sorted(graph.task["index"] for graph in graphs) == [2 * number, 2 * number + 1]
        assert all(graph.credit for graph in graphs)


@pytest.mark.long
@pytest.mark.parametrize("mode", MODES)
def test_without_an_order_slow_tasks_are_dropped(train, tmp_path, mode):
    """The same tasks by verl's rules, of which the metrics tell."""
    store = tmp_path / "graphs"
    overrides = [f"trainer.v1.trainer_mode={mode}", *SLOW, *MODES[mode], f"hier.store.path={store}"]
    run = train("grpo_bytes", overridden([*overrides, "trainer.total_training_steps=4"]))
    assert run.code == 0, run.log[-3000:]
    stored = [[graph.task["index"] for graph in read_graphs(step)] for step in sorted(store.glob("step_*"))]
    assert all(len(tasks) >= 2 for tasks in stored)
    # Task 3 ends only after task 5, so that a step has trained later ones before it, or verl has dropped it.
    earlier = [task for tasks in stored[:2] for task in tasks]
    assert 3 not in earlier and max(earlier) > 3
