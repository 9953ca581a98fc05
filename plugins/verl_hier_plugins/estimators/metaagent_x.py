"""MetaAgent-X, designers and executors (arXiv 2605.14212), docs/methods/metaagent_x.md."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from verl_hier.credit import Floats, Normalisation, Singleton, WeightBy, group_ids, turn_advantage
from verl_hier.graph.turn_table import TurnTable
from verl_hier.hookspecs import hookimpl
from verl_hier.host.constraints import CountOrZero, NonNegative
from verl_hier.host.specs import EstimatorSpec


@dataclass(frozen=True)
class MetaAgentXOptions:
    """Level 0 turns are designs, the others executions; `plan` of an execution turn is its design."""

    executor_group: Literal["question", "design", "auto"] = "question"
    """Executions are compared over the whole task (paper) or under one design; `auto` takes the task when a design
    has at most two executions."""
    executions: CountOrZero = 0
    """Executions per design that `auto` goes by; 0 counts them in the batch."""
    weight_by: WeightBy = "turn"
    """Votes among executions: the released code counts rows, so executions with more calls weigh more."""
    singleton: Singleton = "raw"
    """A group of one."""
    eps: NonNegative = 1e-6
    """Added to the standard deviation."""


def advantage(table: TurnTable, options: MetaAgentXOptions) -> Floats:
    """(T,) designs by the mean return of their executions over the task, executions in their own group."""
    designer = np.asarray(table["level"]) == 0
    kernel: Normalisation = {"singleton": options.singleton, "eps": options.eps}
    designs = turn_advantage(table, table["return"], ("group",), where=designer, **kernel)
    columns = ("group", "plan") if by_design(table, options) else ("group",)
    calls = turn_advantage(table, table["return"], columns, weight_by=options.weight_by, where=~designer, **kernel)
    return np.where(designer, designs, calls)


def by_design(table: TurnTable, options: MetaAgentXOptions) -> bool:
    """Whether executions are grouped under their design."""
    if options.executor_group != "auto":
        return options.executor_group == "design"
    if options.executions:
        return options.executions > 2
    lower = (np.asarray(table["level"]) > 0) & np.asarray(table["trained"], bool)
    plan, episode = np.asarray(table["plan"])[lower], np.asarray(table["episode"])[lower]
    first = np.unique(group_ids(plan, episode), return_index=True)[1]
    return bool((np.unique(plan[first], return_counts=True)[1] > 2).any())


@hookimpl
def hier_estimators() -> EstimatorSpec:
    return EstimatorSpec(
        "metaagent_x",
        advantage,
        MetaAgentXOptions,
        summary="designs by their executions' mean return, executions over the task or their design",
        source="arXiv 2605.14212; PettingLLMs multi_agents_ppo_trainer.py",
        requires=("group", "level", "return", "trained"),
        levels=(0, 1),
        confidence="A",
    )
