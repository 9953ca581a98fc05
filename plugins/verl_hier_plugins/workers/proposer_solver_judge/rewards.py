"""What a question, its answers and their judges earn; pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Shape = Literal["mae", "zero_sum", "learnable", "comas", "none"]


@dataclass(frozen=True)
class Question:
    """A proposed question.

    Attributes:
        sound: whether the guards found nothing wrong with it.
        quality: its judges' score on [0, 1]; 1 where nobody judges questions.
        answers: the score of each answer, on [0, 1].
    """

    sound: bool
    quality: float
    answers: tuple[float, ...]

    @property
    def solved(self) -> float:
        """Mean score of its answers, 1 where nobody answered."""
        return sum(self.answers) / len(self.answers) if self.answers else 1.0


def proposer_reward(shape: Shape, question: Question, threshold: float) -> float:
    """What the proposer earns.

    `mae` (arXiv 2510.23595): mean of quality, difficulty and form, without difficulty below the threshold. `zero_sum`
    (Search Self-Play, arXiv 2510.18821): what the solvers do not get. `learnable`: 1 where half of the answers are
    right, 0 where all or none are. A question that is not sound earns nothing.
    """
    if not question.sound or shape in ("comas", "none"):
        return 0.0
    if shape == "mae":
        hard = 1.0 - question.solved if question.quality >= threshold else 0.0
        return (question.quality + hard + 1.0) / 3.0
    if not question.answers:
        return 0.0
    return 1.0 - question.solved if shape == "zero_sum" else 4.0 * question.solved * (1.0 - question.solved)


def solver_reward(shape: Shape, score: float, formed: bool) -> float:
    """What an answer earns: half its score, half its form with `mae`, its score otherwise."""
    if shape == "none":
        return 0.0
    return 0.5 * score + 0.5 * formed if shape == "mae" else score


def evaluator_reward(shape: Shape, score: float) -> float:
    """What criticism of an answer earns: what the answer does not, with `comas`."""
    return 1.0 - score if shape == "comas" else 0.0


def judge_reward(shape: Shape, formed: bool, unparsable: float) -> float:
    """What a verdict earns: for its form alone, never for what it says."""
    if shape == "comas":
        return 0.0 if formed else unparsable
    return float(formed) if shape == "mae" else 0.0


def mean_score(verdicts: Sequence[float | None]) -> float:
    """The mean of the verdicts that can be read; 0 without any."""
    read = [verdict for verdict in verdicts if verdict is not None]
    return sum(read) / len(read) if read else 0.0
