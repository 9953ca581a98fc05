"""A planner writes subgoals, and an executor works on one after the other, each in a context of its own."""

from dataclasses import dataclass

from verl_hier.environments.base import StepResult
from verl_hier.hookspecs import hookimpl
from verl_hier.host.specs import WorkerSpec
from verl_hier.rollout import EpisodeView, Turn, Worker

SUB_DONE = "<sub_done>"
"""What the executor says when it has reached its subgoal."""


@dataclass(frozen=True)
class Options:
    """The fields are the options of `hier.worker` in a recipe."""

    planner_prompt: str = "plan: {instruction}"
    """What the planner sees; it answers with subgoals between semicolons."""
    executor_prompt: str = "goal: {subgoal} | {observation}"
    """What the executor sees first of a subgoal."""
    subgoal_turns: int = 10
    """Actions for one subgoal at most."""


class PlanFirst(Worker):
    """Depends on nothing but what `episode` returns, so that an episode can be forked and replayed."""

    def __init__(self, options: Options) -> None:
        self._options = options

    async def run(self, episode: EpisodeView) -> None:
        """Play one episode."""
        step = await episode.reset()
        planner = episode.context("planner")
        planner.observe(self._options.planner_prompt.format(instruction=episode.instruction))
        plan = await episode.generate(planner)
        for number, subgoal in enumerate(plan.text.split(";")):
            step = await self._work_on(subgoal.strip(), number, plan, step, episode)
            if step.done or step.truncated:
                return

    async def _work_on(
        self, subgoal: str, number: int, plan: Turn, step: StepResult, episode: EpisodeView
    ) -> StepResult:
        """Act until the subgoal or the episode is over; `plan` on a turn says under which plan it was taken."""
        executor = episode.context("executor")
        executor.observe(self._options.executor_prompt.format(subgoal=subgoal, observation=step.text))
        for _ in range(self._options.subgoal_turns):
            turn = await episode.generate(executor, segment=number, plan=plan)
            if SUB_DONE in turn.text:
                break
            step = await episode.act(turn.text)  # pays the last turn; `turn=draft` names an earlier one that wrote it
            if step.done or step.truncated:
                break
            executor.observe(step.text)
        return step


WORKER = WorkerSpec(
    name="plan_first",
    factory=PlanFirst,
    options=Options,
    summary="a planner of subgoals and an executor",
    source="example",
    roles={"planner": 0, "executor": 1},
)


@hookimpl
def hier_workers() -> WorkerSpec:
    """Registers the worker `plan_first`."""
    return WORKER
