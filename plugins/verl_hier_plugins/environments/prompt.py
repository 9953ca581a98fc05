"""One action, the answer, which verl's reward function scores afterwards; docs/environments/prompt.md."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from verl_hier.environments.base import FINAL_ANSWER, Environment, StepResult
from verl_hier.environments.scoring import stated_answer
from verl_hier.hookspecs import hookimpl
from verl_hier.host.specs import EnvironmentSpec, NoOptions


class PromptEnvironment(Environment):
    """Ends the task after any action."""

    def __init__(self, options: NoOptions) -> None:
        self._options = options

    def reset(self, task: Mapping[str, Any], seed: int) -> StepResult:
        """See `Environment.reset`; `task["messages"]` is verl's raw prompt."""
        return StepResult(text="\n".join(str(message["content"]) for message in task["messages"]))

    def step(self, action: str) -> StepResult:
        """See `Environment.step`; votes go by the answer in a form that verl's own reward functions read too."""
        answer = stated_answer(action)
        return StepResult(text="", done=True, info={} if answer is None else {FINAL_ANSWER: answer})

    def fork(self) -> Environment:
        """See `Environment.fork`; there is no state to copy."""
        return PromptEnvironment(self._options)


@hookimpl
def hier_environments() -> EnvironmentSpec:
    return EnvironmentSpec(
        "prompt",
        PromptEnvironment,
        summary="verl's data set and reward function: one answer a task",
        source="verl/experimental/agent_loop/single_turn_agent_loop.py",
        fork="native",
        names_states=False,
        info=(),
        says_won=False,
        provides=(FINAL_ANSWER,),
    )
