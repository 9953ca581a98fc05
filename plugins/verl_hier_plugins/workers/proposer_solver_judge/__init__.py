"""Questions, answers and verdicts of one policy, for MAE, CoMAS and Search Self-Play.

Page: docs/methods/proposer_solver_judge.md.
"""

from __future__ import annotations

from collections.abc import Iterator

from verl_hier.hookspecs import hookimpl
from verl_hier.host.lazy import lazy
from verl_hier.host.specs import WorkerSpec
from verl_hier.rollout.transcript import Transcript
from verl_hier_plugins.workers.proposer_solver_judge.options import (
    ProposerSolverJudgeOptions as ProposerSolverJudgeOptions,
)

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


def notes(options: ProposerSolverJudgeOptions) -> Iterator[str]:
    """What the rewards pay for without their author's intention."""
    if options.reward == "zero_sum" and options.questions == "proposer" and options.verify_prompt is None:
        yield (
            "hier.worker.verify_prompt: reward: zero_sum pays a proposer most for a question that nobody can answer; "
            "write a verify_prompt, by which such questions are left out, or take `reward: learnable`."
        )


@hookimpl
def hier_workers() -> WorkerSpec:
    return WorkerSpec(
        name="proposer_solver_judge",
        factory=lazy("verl_hier_plugins.workers.proposer_solver_judge.worker:ProposerSolverJudge"),
        options=ProposerSolverJudgeOptions,
        summary="a proposer asks, solvers answer side by side, a judge scores both; rewards for each role",
        source="MAE, arXiv 2510.23595; Search Self-Play, arXiv 2510.18821; CoMAS (recalled)",
        active_roles=ProposerSolverJudgeOptions.levels,
        judges=ProposerSolverJudgeOptions.judges,
        provides=("judge", "format"),
        transcribe=transcribe,
        notes=notes,
    )
