"""Turn-table columns beyond the standard ones: what they mean, which part provides them, and with which recipe line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Column:
    """Where a column comes from.

    Attributes:
        meaning: what it holds.
        provider: who has to fill it.
        line: the recipe line that does it.
    """

    meaning: str
    provider: Literal["environment", "worker", "sampler", "schedule", "critic", "probe", "process reward"]
    line: str


_WORKER = "hier.worker.name"
_SAMPLER = "hier.sampler.name"
_SCHEDULE = "hier.schedule.name"
_ENVIRONMENT = "hier.environment.name"
_CRITIC = "critic.enable: true"

COLUMNS: dict[str, Column] = {
    "anchor": Column("state before the action", "environment", _ENVIRONMENT),
    "plan": Column("turn of the plan above", "worker", _WORKER),
    "segment": Column("running number of the subgoal", "worker", _WORKER),
    "level": Column("level of the role, 0 is the highest", "worker", _WORKER),
    "role": Column("role of the turn", "worker", _WORKER),
    "agent": Column("agent of the turn", "worker", _WORKER),
    "policy": Column("policy of the turn", "worker", "hier.policies"),
    "value": Column("critic at the first action token", "critic", _CRITIC),
    "tokens.value": Column("critic at every action token", "critic", _CRITIC),
    "value_low": Column("critic behind the subgoal of the turn", "critic", "hier.value_heads: {low: 1.0}"),
    "value_high": Column("critic before the turn chooses a subgoal", "critic", "hier.value_heads: {high: 1.0}"),
    "value_term": Column("critic before the turn keeps or switches", "critic", "hier.value_heads: {term: 1.0}"),
    "tokens.switch": Column("mask of the switch tokens", "worker", _WORKER),
    "tokens.subgoal": Column("mask of the subgoal tokens", "worker", _WORKER),
    "tokens.action": Column("mask of the action tokens", "worker", _WORKER),
    "q1": Column("first utterance-level Q head", "critic", "hier.replay: {}"),
    "q2": Column("second utterance-level Q head", "critic", "hier.replay: {}"),
    "v1": Column("first utterance-level V head", "critic", "hier.replay: {}"),
    "v2": Column("second utterance-level V head", "critic", "hier.replay: {}"),
    "tokens.baseline": Column("advantage as the critic predicts it", "critic", "hier.replay: {baseline: true}"),
    "value_progress": Column(
        "predicted contribution of the turn to the return", "critic", "hier.value_heads: {progress: 1.0}"
    ),
    "tokens.value_token": Column("critic at every action token", "critic", "hier.value_heads: {token: 1.0}"),
    "info_gain": Column("gain in the probability of the true answer", "probe", "hier.probes: {true_answer: {}}"),
    "feedback_gain": Column(
        "how much likelier the next turn is after the feedback of this one", "probe", "hier.probes: {feedback: {}}"
    ),
    "step_reward": Column(
        "how much likelier a second trained model finds the turn", "process reward", "hier.process_reward: {}"
    ),
    "tag": Column("number of the kind of step, -1 without one", "worker", _WORKER),
    "tag_reward": Column("rule reward of the tagged step", "worker", _WORKER),
    "step_score": Column("rule score of the step itself", "environment", _ENVIRONMENT),
    "budget": Column("token budget that the prompt announced", "worker", _WORKER),
    "judge": Column("judge score of the turn in [0, 1]", "worker", _WORKER),
    "format": Column("whether the turn's tags parse, 0 or 1", "worker", _WORKER),
    "suffix": Column("whether the turn belongs to the ending of its episode", "sampler", _SAMPLER),
    "preference": Column("1 for the better of two endings, -1 for the worse", "sampler", _SAMPLER),
    "class_weight": Column("weight of the task's class", "schedule", _SCHEDULE),
    "entropy_mean": Column("mean entropy of such turns in earlier steps", "schedule", _SCHEDULE),
    "smoothing": Column("present weight of the entropy smoothing", "schedule", _SCHEDULE),
    "own_return": Column("return of the role in the episode", "schedule", _SCHEDULE),
    "baseline": Column("running mean of such returns before the episode", "schedule", _SCHEDULE),
    "solo_return": Column("return of the same task without some of the roles", "sampler", _SAMPLER),
    "masked_return": Column("return of the episode with the messages of the turn's role masked", "sampler", _SAMPLER),
    "history_reward": Column("reward of the role by the history of both outcomes", "schedule", _SCHEDULE),
    "completion": Column("which of its agent's completions in this joint step", "sampler", _SAMPLER),
    "rates": Column("whether the turn rates who has contributed", "worker", _WORKER),
    "share": Column("the first agent's part of the contribution, as the turn rates it", "worker", _WORKER),
    "value_last": Column("critic at the end of the turn", "critic", "hier.value_heads: {last: 1.0}"),
    "skill_used": Column("whether the turn used a stored skill", "worker", _WORKER),
    "skill_sources": Column(
        "2^k for each question k whose skills have helped the turn to solve its own", "worker", _WORKER
    ),
    "question_solved": Column("whether the turn has solved its question", "worker", _WORKER),
}


def missing_column(estimator: str, column: str) -> str:
    """One sentence: which estimator, which column, who provides it, which line of the recipe."""
    known = COLUMNS.get(column)
    if known is None:
        return (
            f"estimator {estimator!r} needs the column {column!r}, which a worker, sampler, schedule or environment "
            f"has to list in its `provides`; choose one that does in `hier.worker.name`, `hier.sampler.name`, "
            f"`hier.schedule.name` or `hier.environment.name`."
        )
    if known.provider in ("critic", "probe", "process reward"):
        remedy = f"set `{known.line}`"
    else:
        remedy = f"choose a {known.provider} that lists it in `provides` with `{known.line}`"
    return (
        f"estimator {estimator!r} needs the column {column!r} ({known.meaning}), "
        f"which the {known.provider} provides; {remedy}."
    )
