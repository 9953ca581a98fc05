"""The options of the verifiers environment: which of its environments, and which of its tasks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from verl_hier.host.constraints import Count


@dataclass(frozen=True)
class VerifiersOptions:
    """Options of the `verifiers` environment."""

    env: Mapping[str, Any] = field(default_factory=dict)
    """The block `env` of a verifiers configuration: `{taskset: {id: my_taskset}}`, and what else it has."""
    instruction: str = "do what is asked for"
    """What the policy is told to do; the system message and the prompt of a task are the first observation."""
    secrets: tuple[str, ...] = ()
    """Environment variables that tasks need, such as the key of a judge; their values are masked."""
    pool: Count = 400
    """Tasks in the training split, the first of those that are in it."""
    validation: Count = 64
    """Tasks in each held-out split."""
    won_above: float = 0.0
    """An episode is won when it has ended with a reward above this."""
    max_steps: Count = 30
    """Answers after which an episode is truncated, and scored as it is."""

    def __post_init__(self) -> None:
        taskset = self.env.get("taskset")
        if not isinstance(taskset, Mapping) or not isinstance(taskset.get("id"), str):
            raise ValueError("env has to name a taskset: {taskset: {id: my_taskset}}")
