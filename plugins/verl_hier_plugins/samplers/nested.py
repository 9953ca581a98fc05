"""HiMAC (arXiv 2603.00977): several plans, each tried once, then n executions of one; docs/methods/himac.md."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from verl_hier.hookspecs import hookimpl
from verl_hier.host.constraints import Count
from verl_hier.host.specs import SamplerSpec
from verl_hier.rollout import Episode, Rollout, Sampler
from verl_hier.rollout.branching import at_least
from verl_hier.rollout.seeds import generator


@dataclass(frozen=True)
class NestedOptions:
    """Options of `nested`. `actor_rollout_ref.rollout.n` is the number of executions of the chosen plan."""

    plans: Count = 8
    """Plans a task (N_M)."""
    plans_when_frozen: Count | None = None
    """Plans tried in steps in which the planner does not learn; omitted: as many as `plans`."""
    select: Literal["best", "random"] = "best"
    """Which plan is executed: the one whose trial returned most (lowest number on ties), or any (ablation)."""
    greedy_trial: bool = True
    """Try each plan by one greedy execution, so that its return says little about the executor's luck."""


class Nested(Sampler):
    """See the module."""

    def __init__(self, options: NestedOptions) -> None:
        self._options = options

    async def sample(self, rollout: Rollout) -> None:
        """See `Sampler.sample`."""
        options = self._options
        plans_learn = rollout.levels is None or 0 in rollout.levels
        executions_learn = rollout.levels is None or any(level > 0 for level in rollout.levels)
        plans = options.plans if plans_learn else options.plans_when_frozen or options.plans
        trials = [rollout.start(trained=False, plan=number) for number in range(plans)]
        await rollout.advance(trials)
        if not executions_learn:
            rollout.expected = 0
        if plans_learn or plans > 1:
            for trial in trials:
                trial.greedy, trial.trained = options.greedy_trial, False
            await rollout.run(trials)
        if executions_learn:
            chosen = self._choose(rollout, trials)
            if chosen is not None:
                executions = [await chosen.fork(after=1, plan=chosen.id) for _ in range(rollout.n)]
                await rollout.run(executions)

    def _choose(self, rollout: Rollout, trials: list[Episode]) -> Episode | None:
        """z*: the trial to execute; None when every plan was lost to faults."""
        alive = [trial for trial in trials if trial.record.status != "failed" and trial.path]
        if not alive:
            return None
        if self._options.select == "random":
            return generator(rollout.seed or 0, rollout.seed_name, "nested").choice(alive)
        return max(alive, key=lambda trial: trial.ret)


@hookimpl
def hier_samplers() -> SamplerSpec:
    return SamplerSpec(
        "nested",
        Nested,
        NestedOptions,
        summary="several plans, each tried once; n executions of the best one",
        source="HiMAC, arXiv 2603.00977 (confidence B)",
        episodes=at_least(2, "nested sampler compares n executions of one plan"),
        needs_fork=True,
        sees_outcomes=lambda options: options.select != "random",
    )
