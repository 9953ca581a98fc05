"""A strategic and a tactical loop (the control pattern of CVE2PoC), docs/workers/dual_loop.md and
docs/estimators/dual_loop.md."""

from verl_hier_plugins.dual_loop.estimator import DualLoopCreditOptions, advantage
from verl_hier_plugins.dual_loop.worker import DualLoop, DualLoopOptions

from verl_hier.hookspecs import hookimpl
from verl_hier.specs import EstimatorSpec, WorkerSpec

SOURCE = "CVE2PoC's dual loop, from its abstract (confidence C)"


@hookimpl
def hier_workers() -> list[WorkerSpec]:
    """The `dual_loop` worker."""
    return [
        WorkerSpec(
            name="dual_loop",
            factory=DualLoop,
            options=DualLoopOptions,
            summary="plan, try, check: failures go back to the executor under the same plan, or to a new plan",
            source=SOURCE,
            doc="workers/dual_loop.md",
            roles={"planner": 0, "executor": 1, "refiner": 1},
            provides=("attempt", "route"),
            speakers=lambda options: ("planner", "executor", "refiner")[: 3 if options.router == "refiner" else 2],
        )
    ]


@hookimpl
def hier_estimators() -> list[EstimatorSpec]:
    """The `dual_loop` estimator."""
    return [
        EstimatorSpec(
            name="dual_loop",
            factory=advantage,
            options=DualLoopCreditOptions,
            summary="plans against the plans of the task, tries against the tries under their plan",
            source=SOURCE,
            doc="estimators/dual_loop.md",
            requires=("group", "plan", "level", "reward", "trained"),
            confidence="C",
        )
    ]
