"""How much likelier a turn is because of what it has just seen (arXiv 2603.00656), docs/probes.md."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from verl_hier.credit import Floats
from verl_hier.credit.tokens import token_bounds
from verl_hier.errors import CreditError
from verl_hier.graph.turn_table import TurnTable
from verl_hier.hookspecs import hookimpl
from verl_hier.host.specs import ProbeSpec
from verl_hier.training.probes import Contexts, Question, followers


@dataclass(frozen=True)
class FeedbackOptions:
    """What stands in the place of the feedback."""

    placeholder: str = "No information found."
    """Cut to the length of the feedback in tokens, or filled up to it with its last token."""


class Feedback:
    """One question for each turn that follows feedback: the turn itself, with a placeholder of the same length."""

    def __init__(self, options: FeedbackOptions) -> None:
        self._options = options

    def ask(self, contexts: Contexts) -> list[Question]:
        """See `Probe.ask`."""
        placeholder = contexts.encode(self._options.placeholder)
        if not len(placeholder):
            raise CreditError("hier.probes.feedback.placeholder: it has no tokens; give a text.")
        observed = contexts.observed
        turns = np.flatnonzero(observed > 0)
        if not len(turns) and contexts.there.any() and (np.asarray(contexts.table["depth"]) > 0).any():
            raise CreditError(
                "hier.probes: the probe 'feedback' needs agents that keep their history, and no turn of this step goes "
                "on with the context of an earlier one; set `history: 0` of hier.worker, or choose another worker."
            )
        found = []
        for turn in turns.tolist():
            context = contexts.before(turn)
            opening = contexts.generation_prompt
            kept = len(opening) if len(opening) and np.array_equal(context[-len(opening) :], opening) else 0
            length = max(int(observed[turn]) - kept, 0)
            stop = len(context) - kept
            filled = np.append(placeholder[:length], np.full(max(length - len(placeholder), 0), placeholder[-1]))
            masked = np.concatenate([context[: stop - length], filled, context[stop:]])
            found.append(Question(turn, masked, contexts.action(turn)))
        return found

    def read(
        self, table: TurnTable, questions: Sequence[Question], answers: Sequence[NDArray[Any]]
    ) -> dict[str, Floats]:
        """`feedback_gain`: mean over the tokens of the next turn, log-prob with the feedback minus that without."""
        seen = np.asarray(table["tokens.old_logprob"], np.float64)
        start, stop = token_bounds(np.asarray(table["tokens.turn"]), len(table))
        shift = np.full(len(table), np.nan)
        for question, answer in zip(questions, answers, strict=True):
            turn = question.turn
            shift[turn] = np.mean(seen[start[turn] : stop[turn]] - answer)
        gain, count = np.zeros(len(table)), np.zeros(len(table))
        for turn, later in followers(table):
            if np.isfinite(shift[later]):
                gain[turn] += shift[later]
                count[turn] += 1
        return {"feedback_gain": gain / np.maximum(count, 1)}


@hookimpl
def hier_probes() -> ProbeSpec:
    return ProbeSpec(
        "feedback",
        Feedback,
        provides=("feedback_gain",),
        options=FeedbackOptions,
        summary="what the feedback of each turn adds to the log-prob of the next one",
        source="arXiv 2603.00656; kfq20/InfoPO verl/trainer/ppo/intrinsic_reward.py",
    )
