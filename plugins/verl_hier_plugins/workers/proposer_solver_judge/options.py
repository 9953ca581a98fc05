"""Options of the `proposer_solver_judge` worker."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from verl_hier.errors import did_you_mean
from verl_hier.host.constraints import Count, Template, ZeroToOne, field_names
from verl_hier.rollout.prompts import check_action_template
from verl_hier_plugins.workers.proposer_solver_judge.rewards import Shape

PROPOSER, VERIFIER, SOLVER, EVALUATOR, JUDGE = "proposer", "verifier", "solver", "evaluator", "judge"
ROLES = (PROPOSER, VERIFIER, SOLVER, EVALUATOR, JUDGE)
Posed = Annotated[str, Template("reference", "truth")]
Asked = Annotated[str, Template("question", "said")]
Answered = Annotated[str, Template("question", "answer", "critique")]
Read = Annotated[str, Template("question", "evidence")]


@dataclass(frozen=True)
class ProposerSolverJudgeOptions:
    """Options of `proposer_solver_judge`.

    Templates may use {instruction}, {observation}, {admissible} and whatever the environment puts into the `info` of
    its reset; {reference} is a question of the pool, {truth} the task's answer, {said} what was said in earlier rounds,
    {critique} what an evaluator said, and {evidence} what the proposer has read.
    """

    questions: Literal["proposer", "task"] = "proposer"
    """Who asks: a `proposer`, or the `task` of the environment."""
    solvers: Count = 2
    """Answers to each question, made side by side."""
    rounds: Count = 1
    """Rounds of answers; from the second on a solver reads what all have said in the one before."""
    evaluator: bool = False
    """Whether an evaluator criticises each answer before it is judged."""
    answers_by: Literal["judge", "match"] = "judge"
    """Who scores answers: a `judge`, or a comparison with the `truth` field of the task."""
    judge_questions: bool = True
    """Whether a judge scores proposed questions too."""
    truth: str = "answer"
    """Field of the task with its true answer or answers, for `match` and {truth}."""
    proposer_prompt: Posed = "propose: {reference}"
    """What a proposer reads."""
    solver_prompt: Asked = "{question}"
    """What a solver reads first."""
    later_prompt: Asked = "{said}"
    """What a solver reads in each later round."""
    evaluator_prompt: Answered = "evaluate: {question} | {answer}"
    """What an evaluator reads."""
    question_prompt: Asked = "judge: {question}"
    """What a judge of a question reads."""
    judge_prompt: Answered = "judge: {question} | {answer} | {critique}"
    """What a judge of an answer reads."""
    verify_prompt: Read | None = None
    """When set, a verifier first answers the question from the proposer's {evidence}; a question whose answer is not
    the true one then is dropped (Search Self-Play)."""
    systems: Mapping[str, str] = field(default_factory=dict)
    """System message of each role, for chat models."""
    policies: Mapping[str, str] = field(default_factory=dict)
    """Name of the policy of each role that does not have the default one."""
    question_tag: str = "question"
    """The question is the text inside <tag>…</tag>."""
    answer_tag: str = "answer"
    """The answer is the text inside <tag>…</tag>."""
    score_tag: str = "score"
    """The verdict is the number inside <tag>…</tag>."""
    lowest: float = 1.0
    """The lowest verdict, which is a score of 0."""
    highest: float = 10.0
    """The highest verdict, which is a score of 1."""
    tool: str | None = None
    """Beginning of the actions that proposer and solver may take in the environment, such as `search`; a tag such as
    `<search>` may follow a thought."""
    tool_turns: Count = 4
    """Turns that they have for actions, the last one included."""
    reward: Shape = "mae"
    """What the roles earn, see the page: `mae`, `zero_sum`, `learnable`, `comas` or `none`."""
    threshold: ZeroToOne = 0.7
    """Least quality of a question whose difficulty counts, with `mae`."""
    unparsable: float = -1.0
    """Reward of a verdict that cannot be read, with `comas`."""
    shortest: Count = 3
    """Words that a question has at least."""
    longest: Count = 2000
    """Characters that a question or a quoted answer has at most."""
    similar: ZeroToOne = 0.9
    """Share of words in common with its reference above which a question is a copy."""
    judge_learns: bool = False
    """Whether a judge may be trained by an estimator that credits it for what its own verdicts give."""
    answer_action: str = "answer {content}"
    """The action that a solver's answer makes in evaluations, with {content}, where it answers the task."""

    def __post_init__(self) -> None:
        check_action_template("answer_action", self.answer_action)
        if self.highest <= self.lowest:
            raise ValueError(f"highest must be above lowest, got {self.highest} and {self.lowest}")
        # Prompts serve several methods, so that a system message may wait for a role that these options do not have.
        for line, roles in (("systems", ROLES), ("policies", tuple(self.levels()))):
            for name in getattr(self, line):
                if name not in roles:
                    raise ValueError(
                        f"{line}: there is no role {name!r}{did_you_mean(name, roles)}; "
                        f"the roles are {', '.join(roles)}"
                    )
        if self.verify_prompt is not None and self.questions == "task":
            raise ValueError("verify_prompt: a task's own question needs no verifier; leave it out")
        if self.verify_prompt is not None and "question" not in field_names(self.verify_prompt):
            raise ValueError(
                "verify_prompt: a verifier that is not told the question cannot answer it; write {question} into it"
            )
        if self.reward == "comas" and not (self.evaluator and self.questions == "task"):
            raise ValueError("reward: comas needs `evaluator: true` and `questions: task`")

    def levels(self) -> dict[str, int]:
        """The roles that take turns, each with its level: the proposer's is 0, that of all others 1."""
        found = {PROPOSER: 0} if self.questions == "proposer" else {}
        found |= {VERIFIER: 1} if self.verify_prompt is not None else {}
        found |= {SOLVER: 1}
        found |= {EVALUATOR: 1} if self.evaluator else {}
        judged = self.answers_by == "judge" or (self.judge_questions and self.questions == "proposer")
        return found | ({JUDGE: 1} if judged else {})

    def judges(self) -> tuple[str, ...]:
        """Roles that must not be trained on what they decide."""
        return (JUDGE,) if JUDGE in self.levels() and not self.judge_learns else ()

    def vocabulary(self) -> Iterator[str]:
        """Every word that the worker itself adds to prompts and turns."""
        yield "right wrong" if self.evaluator else ""
        yield " ".join(f"<{tag}> </{tag}>" for tag in (self.question_tag, self.answer_tag, self.score_tag))
        yield " ".join(map(str, range(int(self.lowest), min(int(self.highest), int(self.lowest) + 100) + 1)))
