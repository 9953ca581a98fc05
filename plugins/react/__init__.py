"""Flat multi-turn worker: one agent, one level. ReAct, https://arxiv.org/abs/2210.03629; docs/workers/react.md."""

from verl_hier_plugins.react.worker import React, ReactOptions

from verl_hier.hookspecs import hookimpl
from verl_hier.specs import WorkerSpec


@hookimpl
def hier_workers() -> list[WorkerSpec]:
    """The `react` worker."""
    return [
        WorkerSpec(
            name="react",
            factory=React,
            options=ReactOptions,
            summary="one agent acts turn by turn, on its whole history or on a window of it",
            source="ReAct, arXiv 2210.03629 §2; windowed prompts as verl-agent's memory",
            doc="workers/react.md",
            roles={"agent": 0},
        )
    ]
