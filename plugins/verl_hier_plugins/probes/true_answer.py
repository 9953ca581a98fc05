"""How likely the policy finds the true answer in front of each of its turns (arXiv 2510.14967), docs/probes.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from verl_hier.credit import Floats
from verl_hier.errors import CreditError
from verl_hier.graph.turn_table import TurnTable
from verl_hier.hookspecs import hookimpl
from verl_hier.host.specs import ProbeSpec
from verl_hier.training.probes import Contexts, Question, followers


@dataclass(frozen=True)
class TrueAnswerOptions:
    """What stands around the answer when the policy is asked; only the tokens of the answer count."""

    prefix: str = ""
    """In front of the answer, such as the tag that opens it."""
    suffix: str = ""
    """Behind the answer."""
    measure: Literal["probability", "log_probability"] = "probability"
    """Whether the gain is a difference of exp(mean log-prob of the answer's tokens), or of the mean log-prob itself."""


def true_answer(task: Mapping[str, Any]) -> str:
    """The answer that a task counts as right: the first of `answers`, `answer`, or the `ground_truth` of verl's data
    sets; empty without one."""
    found: Any = task.get("answers") or task.get("answer") or (task.get("reward_model") or {}).get("ground_truth")
    if isinstance(found, Mapping):
        found = found.get("target", "")
    while isinstance(found, Sequence | np.ndarray) and not isinstance(found, str):
        found = found[0] if len(found) else ""
    return "" if found is None else str(found)


def lacks(task: Mapping[str, Any]) -> str:
    """What is missing where a task has no true answer."""
    return "" if true_answer(task) else "a true answer (`answers`, `answer`, or `ground_truth` of verl's data sets)"


class TrueAnswer:
    """One question for each turn: the true answer in the place of what the policy said there."""

    def __init__(self, options: TrueAnswerOptions) -> None:
        self._options = options

    def ask(self, contexts: Contexts) -> list[Question]:
        """See `Probe.ask`."""
        options, known = self._options, []
        for task in contexts.tasks:
            answer = true_answer(task)
            if not answer:
                raise CreditError(f"hier.probes: the probe 'true_answer' needs {lacks(task)} in every task.")
            known.append(contexts.encode_within(options.prefix, answer, options.suffix))
        group = np.asarray(contexts.table["group"], np.int64)
        return [
            Question(turn, contexts.before(turn), *known[group[turn]])
            for turn in np.flatnonzero(contexts.there).tolist()
        ]

    def read(
        self, table: TurnTable, questions: Sequence[Question], answers: Sequence[NDArray[Any]]
    ) -> dict[str, Floats]:
        """`info_gain`: what the measure grows by from a turn to the next one of its agent; 0 where none follows."""
        sure = np.full(len(table), np.nan)
        for question, answer in zip(questions, answers, strict=True):
            mean = float(np.mean(answer, dtype=np.float64))
            sure[question.turn] = np.exp(mean) if self._options.measure == "probability" else mean
        gain, count = np.zeros(len(table)), np.zeros(len(table))
        for turn, later in followers(table):
            if np.isfinite(sure[turn]) and np.isfinite(sure[later]):
                gain[turn] += sure[later] - sure[turn]
                count[turn] += 1
        return {"info_gain": gain / np.maximum(count, 1)}


@hookimpl
def hier_probes() -> ProbeSpec:
    return ProbeSpec(
        "true_answer",
        TrueAnswer,
        provides=("info_gain",),
        options=TrueAnswerOptions,
        lacks=lacks,
        summary="what each turn adds to the probability of the true answer",
        source="arXiv 2510.14967 §3; GuoqingWang1/IGPO scrl/llm_agent/generation.py",
    )
