"""Questions, answers and verdicts of one policy, for MAE, CoMAS and Search Self-Play.

Page: docs/methods/proposer_solver_judge.md.
"""

from __future__ import annotations

import numpy as np

from verl_hier.graph.turn_table import TurnTable
from verl_hier.hookspecs import hookimpl
from verl_hier.host.specs import WorkerSpec
from verl_hier.rollout.transcript import Transcript
from verl_hier_plugins.workers.proposer_solver_judge.options import EVALUATOR, JUDGE
from verl_hier_plugins.workers.proposer_solver_judge.options import (
    ProposerSolverJudgeOptions as ProposerSolverJudgeOptions,
)
from verl_hier_plugins.workers.proposer_solver_judge.worker import ProposerSolverJudge as ProposerSolverJudge

WRONG = 4
"""One episode of so many is shown to a judge with a wrong answer."""


def transcribe(options: ProposerSolverJudgeOptions, transcript: Transcript) -> list[str]:
    """What a policy has to say in this worker where an episode has answered its task rightly.

    The question is the task's, and gets the second best verdict; a right answer gets the best one. In every fourth
    episode the last of several solvers answers something else and gets the lowest, so that a judge has seen both.

    Raises:
        ValueError: in one word, for an episode or options that cannot be written so.
    """
    if options.tool or options.verify_prompt:
        raise ValueError("options")
    if not transcript.turns or not transcript.turns[-1].calls:
        raise ValueError("no_answer")
    solved, question = transcript.turns[-1].calls[-1].action, transcript.instruction
    said = [f"<{options.question_tag}>{question}</{options.question_tag}>"] * (options.questions == "proposer")
    if said and options.judge_questions:
        said.append(_verdict(options, options.highest - 1))
    texts, right = [solved] * options.solvers, [True] * options.solvers
    if options.solvers > 1 and sum(map(ord, question)) % WRONG == 0:
        texts[-1], right[-1] = (
            f"<{options.answer_tag}>{_other(options, question, solved)}</{options.answer_tag}>",
            False,
        )
    for _ in range(options.rounds):
        said += texts
        said += ["right" if each else "wrong" for each in right] if options.evaluator else []
        if options.answers_by == "judge":
            said += [_verdict(options, options.highest if each else options.lowest) for each in right]
    return said


def _other(options: ProposerSolverJudgeOptions, question: str, solved: str) -> str:
    """A word of the question that is not the answer."""
    answer = solved.rpartition(f"<{options.answer_tag}>")[2].partition(f"</{options.answer_tag}>")[0]
    return next((word for word in question.split() if word != answer), "")


def _verdict(options: ProposerSolverJudgeOptions, number: float) -> str:
    return f"<{options.score_tag}>{max(number, options.lowest):g}</{options.score_tag}>"


@hookimpl
def hier_workers() -> WorkerSpec:
    return WorkerSpec(
        name="proposer_solver_judge",
        factory=ProposerSolverJudge,
        options=ProposerSolverJudgeOptions,
        summary="a proposer asks, solvers answer side by side, a judge scores both; rewards for each role",
        source="MAE, arXiv 2510.23595; Search Self-Play, arXiv 2510.18821; CoMAS (recalled)",
        active_roles=ProposerSolverJudgeOptions.levels,
        judges=ProposerSolverJudgeOptions.judges,
        provides=("judge", "format"),
        transcribe=transcribe,
    )


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
