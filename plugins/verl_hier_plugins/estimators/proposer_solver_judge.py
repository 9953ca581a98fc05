"""What estimators read of the worker `proposer_solver_judge`; docs/methods/proposer_solver_judge.md.

It stands beside the estimators because `verl-hier credit` loads these alone.
"""

from __future__ import annotations

import numpy as np

from verl_hier.graph.turn_table import TurnTable
from verl_hier.hookspecs import hookimpl

EVALUATOR, JUDGE = "evaluator", "judge"
"""Roles of the worker, which is not imported with the estimators."""


@hookimpl(tryfirst=True)
def hier_table_ready(table: TurnTable, step: int) -> None:
    """Brings the verdicts of judges, the column `judge` on their own turns, to the turns that they judged."""
    if "judge" in table.turns and table.code("role", JUDGE) >= 0:
        table.turns["judge"] = judged(table)


def judged(table: TurnTable) -> np.ndarray:
    """(T,) score of each turn: on a judge's what it said, on a judged one the mean of what can be read of its judges,
    on an evaluator's that of what it evaluated, on any other what the worker noted, or 0."""
    own = np.nan_to_num(np.asarray(table["judge"], np.float64))
    role, plan = np.asarray(table["role"]), np.asarray(table["plan"])
    counts = (role == table.code("role", JUDGE)) & (plan >= 0) & (np.asarray(table["format"], np.float64) > 0)
    votes = np.bincount(plan[counts], minlength=len(own))
    sums = np.bincount(plan[counts], own[counts], len(own))
    score = np.divide(sums, votes, out=own.copy(), where=votes > 0)
    evaluates = (role == table.code("role", EVALUATOR)) & (plan >= 0)
    score[evaluates] = score[plan[evaluates]]
    return score
