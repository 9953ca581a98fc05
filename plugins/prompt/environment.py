"""A world of one action: the answer. The reward comes later, from verl."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from verl_hier.environments.base import Environment, Step
from verl_hier.specs import NoOptions


class PromptEnvironment(Environment):
    """See `plugins/prompt`. Whatever the action, the task is over."""

    def __init__(self, options: NoOptions) -> None:
        self._options = options

    def reset(self, task: Mapping[str, Any], seed: int) -> Step:
        """See `Environment.reset`; `task["messages"]` is verl's raw prompt."""
        return Step(text="\n".join(str(message["content"]) for message in task["messages"]))

    def step(self, action: str) -> Step:
        """See `Environment.step`."""
        return Step(text="", done=True)

    def fork(self) -> Environment:
        """See `Environment.fork`; there is no state."""
        return PromptEnvironment(self._options)
