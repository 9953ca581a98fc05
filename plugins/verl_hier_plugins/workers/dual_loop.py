"""The dual loop: plan, try, check and refine, in two loops; docs/methods/dual_loop.md."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from verl_hier.environments.base import StepResult
from verl_hier.hookspecs import hookimpl
from verl_hier.host.constraints import Count, NonNegative, Prompt, Template
from verl_hier.host.specs import WorkerSpec
from verl_hier.rollout import EpisodeView, Turn, Worker
from verl_hier.rollout.prompts import fields, observe
from verl_hier_plugins.workers.react import parse_action

Route = Literal["done", "tactical", "strategic"]
DONE, TACTICAL, STRATEGIC = "done", "tactical", "strategic"
CODES = {DONE: 0, TACTICAL: 1, STRATEGIC: 2}


@dataclass(frozen=True)
class DualLoopOptions:
    """Options of `dual_loop`.

    Templates may use {instruction}, {observation}, {admissible} and whatever the environment puts into its `info`; the
    executor's and the refiner's also {plan}, the refiner's and the later ones {action}.
    """

    planner_prompt: Prompt = "plan: {instruction}"
    """First message of the planner, whose context lasts the episode."""
    replan_prompt: Annotated[str, Template(later=True)] = "{observation}"
    """Next message of the planner after its plan has failed."""
    planner_system: str | None = None
    """System message of the planner, for chat models."""
    executor_prompt: Annotated[str, Template("plan")] = "{instruction} | {plan} | {observation}"
    """First message of the executor under a plan; its context starts anew with each plan."""
    repair_prompt: Annotated[str, Template("plan", later=True)] = "{observation}"
    """Next message of the executor after a failed attempt under the same plan."""
    executor_system: str | None = None
    """System message of the executor, for chat models."""
    action_tag: str | None = None
    """When set, the executor's action is the text inside <tag>…</tag>."""
    tries: Count = 3
    """Attempts under one plan (1 + k_t repairs)."""
    plans: Count = 2
    """Plans in one episode (1 + k_s new ones)."""
    router: Literal["checks", "refiner"] = "checks"
    """What decides whether the plan is to blame for a failure: the environment's checks, or a refiner agent."""
    verdict: str = "failure"
    """Entry of the environment's `info` that names the failure, for `router: checks`."""
    strategic: tuple[str, ...] = ("strategy", "strategic")
    """Names of failures that call for a new plan; any other is repaired under the same one."""
    refiner_prompt: Annotated[str, Template("plan", "action", later=True)] = "{plan} | {action} | {observation}"
    """First message of the refiner, whose context is new each time. A turn with `strategic` blames the plan."""
    refiner_system: str | None = None
    """System message of the refiner, for chat models."""
    empty_plan_penalty: NonNegative = 0.0
    """Subtracted from the reward of an empty plan."""
    longest_plan: Count = 4000
    """Characters of a plan that reach the executor."""


class DualLoop(Worker):
    """See the module."""

    def __init__(self, options: DualLoopOptions) -> None:
        self._options = options

    async def run(self, episode: EpisodeView) -> None:
        """See `Worker.run`."""
        options = self._options
        step = first = await episode.reset()
        planner = episode.context("planner", system=options.planner_system)
        for number in range(options.plans):
            name = "replan_prompt" if number else "planner_prompt"
            observe(planner, options, name, known(episode, step, first))
            plan = await episode.generate(planner, segment=number)
            if not plan.text.strip():
                plan.mark(valid=False, failure="empty_plan")
                plan.reward(-options.empty_plan_penalty)
            step = await self._tactical(episode, plan, number, step, first)
            if step.done or step.truncated:
                return

    async def _tactical(
        self, episode: EpisodeView, plan: Turn, number: int, step: StepResult, first: StepResult
    ) -> StepResult:
        """The attempts under one plan; returns the environment's last answer."""
        options = self._options
        context = episode.context("executor", system=options.executor_system)
        text = plan.text[: options.longest_plan]
        for attempt in range(options.tries):
            name = "repair_prompt" if attempt else "executor_prompt"
            observe(context, options, name, known(episode, step, first, plan=text), {"plan": [plan]})
            turn = await episode.generate(context, segment=number, plan=plan)
            action = parse_action(turn.text, options.action_tag)
            if action is None:
                turn.mark(valid=False, failure="no_action_tag")
            step = await episode.act(action or "")
            route = await self._route(episode, turn, plan, number, action or "", step, first)
            turn.mark(attempt=attempt, route=CODES[route])
            if route != TACTICAL:
                break
        return step

    async def _route(
        self,
        episode: EpisodeView,
        turn: Turn,
        plan: Turn,
        number: int,
        action: str,
        step: StepResult,
        first: StepResult,
    ) -> Route:
        """What follows an attempt: the end, another attempt (tactical) or another plan (strategic)."""
        options = self._options
        if step.done or step.truncated:
            return "done"
        if options.router == "checks":
            return "strategic" if str(step.info.get(options.verdict, "")) in options.strategic else "tactical"
        context = episode.context("refiner", system=options.refiner_system)
        filled = known(episode, step, first, plan=plan.text[: options.longest_plan], action=action)
        observe(context, options, "refiner_prompt", filled, {"plan": [plan], "action": [turn] if action else []})
        verdict = await episode.generate(context, segment=number, plan=plan)
        text = verdict.text.lower()
        if STRATEGIC not in text and TACTICAL not in text:
            verdict.mark(valid=False, failure="no_route")
        return "strategic" if STRATEGIC in text else "tactical"


def known(episode: EpisodeView, step: StepResult, first: StepResult, **more: str) -> dict[str, str]:
    """Fields of the templates: those of every worker, and the `info` of the environment's last answer."""
    return {name: str(value) for name, value in step.info.items()} | fields(episode, step, first, **more)


@hookimpl
def hier_workers() -> WorkerSpec:
    return WorkerSpec(
        "dual_loop",
        DualLoop,
        DualLoopOptions,
        summary="plan, try, check: failures go back to the executor under the same plan, or to a new plan",
        source="CVE2PoC's dual loop, from its abstract (confidence C)",
        roles={"planner": 0, "executor": 1, "refiner": 1},
        provides=("attempt", "route"),
        active_roles=lambda options: ("planner", "executor", "refiner")[: 3 if options.router == "refiner" else 2],
    )
