"""HiMAC (arXiv 2603.00977), a blueprint and its subgoals in new contexts; docs/methods/himac.md."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from verl_hier.environments.base import StepResult
from verl_hier.hookspecs import hookimpl
from verl_hier.host.constraints import Count, NonNegative, Prompt, Template
from verl_hier.host.specs import WorkerSpec
from verl_hier.rollout import EpisodeView, Turn, Worker
from verl_hier.rollout.prompts import fields, observe
from verl_hier_plugins.workers.react import parse_action

SUB_DONE = "<sub_done>"


@dataclass(frozen=True)
class PlannerExecutorOptions:
    """Options of `planner_executor`.

    Templates may use {instruction}, {observation}, {admissible} and whatever the environment puts into the `info` of
    its reset; the executor's also {subgoal} and {blueprint}.
    """

    planner_prompt: Prompt = "plan: {instruction}"
    """What the planner sees."""
    executor_prompt: Annotated[str, Template("subgoal", "blueprint")] = "goal: {subgoal} | {observation}"
    """First message of the executor for a subgoal; its context is new."""
    observation_prompt: Annotated[str, Template("subgoal", "blueprint")] = "{observation}"
    """What the executor sees after each action."""
    planner_system: str | None = None
    """System message of the planner, for chat models."""
    executor_system: str | None = None
    """System message of the executor, for chat models."""
    separator: str = ";"
    """Between the subgoals of a blueprint; a line break always separates."""
    max_subgoals: Count = 12
    """Subgoals beyond this number are ignored."""
    subgoal_turns: Count = 12
    """Limit of the executor's actions for one subgoal."""
    sub_done: bool = True
    """Whether the executor may end a subgoal itself by `<sub_done>`; False leaves only the step budget (ablation)."""
    plan_penalty: NonNegative = 0.0
    """Subtracted from the reward of a planner turn without a subgoal."""
    action_tag: str | None = None
    """When set, the executor's action is the text inside <tag>…</tag>."""


def parse_blueprint(text: str, separator: str, most: int) -> list[str]:
    """Subgoals of a planner's text, in order; list markers and empty parts are dropped."""
    parts = (part for line in text.splitlines() for part in line.split(separator))
    goals = (part.strip().lstrip("-*0123456789.) ").strip() for part in parts)
    return [goal for goal in goals if goal][:most]


class PlannerExecutor(Worker):
    """See the module."""

    def __init__(self, options: PlannerExecutorOptions) -> None:
        self._options = options

    async def run(self, episode: EpisodeView) -> None:
        """See `Worker.run`."""
        options = self._options
        step = first = await episode.reset()
        planner = episode.context("planner", system=options.planner_system)
        observe(planner, options, "planner_prompt", fields(episode, step, first))
        plan = await episode.generate(planner)
        subgoals = parse_blueprint(plan.text, options.separator, options.max_subgoals)
        if not subgoals:
            plan.mark(valid=False)
            plan.reward(-options.plan_penalty)
        for number, subgoal in enumerate(subgoals):
            step = await self._work_on(episode, plan, number, subgoal, step, first)
            if step.done or step.truncated:
                return

    async def _work_on(
        self, episode: EpisodeView, plan: Turn, number: int, subgoal: str, step: StepResult, first: StepResult
    ) -> StepResult:
        options = self._options
        context = episode.context("executor", system=options.executor_system)
        known = fields(episode, step, first, subgoal=subgoal, blueprint=plan.text)
        observe(context, options, "executor_prompt", known, {"subgoal": [plan], "blueprint": [plan]})
        for _ in range(options.subgoal_turns):
            turn = await episode.generate(context, segment=number, plan=plan)
            if options.sub_done and SUB_DONE in turn.text:
                break
            action = parse_action(turn.text, options.action_tag)
            if action is None:
                turn.mark(valid=False)
            step = await episode.act(action or "")
            if step.done or step.truncated:
                break
            known = fields(episode, step, first, subgoal=subgoal, blueprint=plan.text)
            observe(context, options, "observation_prompt", known, {"subgoal": [plan], "blueprint": [plan]})
        return step


@hookimpl
def hier_workers() -> WorkerSpec:
    return WorkerSpec(
        "planner_executor",
        PlannerExecutor,
        PlannerExecutorOptions,
        summary="a planner writes a blueprint of subgoals, an executor works on them one by one",
        source="HiMAC, arXiv 2603.00977 (confidence B)",
        roles={"planner": 0, "executor": 1},
    )
