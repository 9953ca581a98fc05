"""MetaAgent-X, designers and executors (arXiv 2605.14212), docs/methods/metaagent_x.md."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from verl_hier.credit import (
    Bools,
    Floats,
    Ints,
    Normalisation,
    Singleton,
    WeightBy,
    group_advantage,
    group_ids,
    trained_only,
    turn_advantage,
    turn_votes,
)
from verl_hier.graph.turn_table import TurnTable
from verl_hier.hookspecs import hookimpl
from verl_hier.host.constraints import CountOrZero, NonNegative
from verl_hier.host.specs import EstimatorSpec


@dataclass(frozen=True)
class MetaAgentXOptions:
    """Level 0 turns are designs, the others executions; `plan` of an execution turn is its design."""

    executor_group: Literal["question", "design", "auto"] | None = None
    """Executions are compared over the whole task (`question`) or under one design. Null and `auto` take the task when
    a design has at most two executions, else the design. With one execution a design it is always the task."""
    executions: CountOrZero = 0
    """Executions per design that null and `auto` go by; 0 counts them in the batch."""
    failed_designs: Literal["count", "ignore"] = "ignore"
    """Whether each execution of a design that no executor could work on has a vote among the executions, with its
    return. In the released code it has one where the executor is an agent of its own."""
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
    return np.where(designer, designs, _executions(table, options, ~designer, kernel))


def _executions(table: TurnTable, options: MetaAgentXOptions, executor: Bools, kernel: Normalisation) -> Floats:
    """(T,) advantage of the executors' turns; failed executions follow the turns as rows of their own, (T + F)."""
    design, failed = _failed(table) if options.failed_designs == "count" else (np.zeros(0, np.int64),) * 2
    columns = [np.append(table["group"], np.asarray(table["group"])[design])]
    if by_design(table, options):
        columns.append(np.append(table["plan"], design))
    keys = group_ids(*columns)
    turns = slice(0, len(table))
    chosen = executor & np.asarray(table["trained"], bool)
    votes = turn_votes(table, keys[turns], options.weight_by, chosen)
    scores = np.append(table["return"], np.asarray(table["episodes.return"])[failed])
    weights = None if votes is None else np.append(votes, np.ones(len(failed)))
    counted = np.append(chosen, np.ones(len(failed), bool))
    return trained_only(table, group_advantage(scores, keys, weights=weights, where=counted, **kernel)[turns])


def _failed(table: TurnTable) -> tuple[Ints, Ints]:
    """(F,) design turns that end a trained episode and that no executor's turn follows, and (F,) these episodes."""
    leaf = np.asarray(table["episodes.leaf"])
    plan = np.asarray(table["plan"])
    executed = np.bincount(plan[plan >= 0], minlength=len(table)) > 0
    failed = np.asarray(table["episodes.trained"], bool) & ~executed[leaf] & (np.asarray(table["level"])[leaf] == 0)
    return leaf[failed], np.flatnonzero(failed)


def by_design(table: TurnTable, options: MetaAgentXOptions) -> bool:
    """Whether executions are grouped under their design."""
    if options.executions == 1:
        return False
    if options.executor_group in ("question", "design"):
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
        requires=("group", "level", "plan", "episode", "return", "trained", "episodes.return"),
        levels=(0, 1),
        confidence="A",
    )
