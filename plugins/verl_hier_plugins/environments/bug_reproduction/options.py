"""The options of `bug_reproduction` in a recipe: the schema of `hier.environment`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from verl_hier.host.constraints import NonNegative

HIGHEST = 3


@dataclass(frozen=True)
class BugReproductionOptions:
    """Options of `bug_reproduction`."""

    difficulty: int | tuple[int, ...] = 0
    """0: one whole number, and the bug report says when the bug shows; 1: also two arguments and lists; 2: also texts,
    and the report says only the effect; 3: the report says only that there is a bug. A list mixes them evenly."""
    show_code: bool = False
    """Put the buggy function's source into the instruction."""
    pool: int = 480
    """Tasks in the training split."""
    validation: int = 64
    """Tasks in each held-out split."""
    seed: int = 0
    """Seed of the task pools. Splits are disjoint for every seed."""
    max_steps: int = 6
    """Tests that may be submitted before the episode is truncated."""
    max_checks: int = 3
    """Checks (`f(…) == …`) in one test at most."""
    reveal: bool = False
    """Reveal what the correct function returned where a test expects something else."""
    spelling: Literal["symbols", "words"] = "symbols"
    """`words` spells numbers digit by digit and tests as `test one two comma three is five`, for models with a small
    vocabulary. Needs a difficulty below 2 and no code."""
    stage_scores: tuple[float, ...] = (0.0, 0.0, 1.0)
    """Scores of a test that is parsed, that passes on the correct function, and that also fails on the buggy one.
    The reward of a turn is its increase of the episode's best score."""
    invalid_penalty: NonNegative = 0.02
    """Subtracted from the reward of a turn that is not a test."""
    time_limit_s: int = 1
    """Processor seconds of one run of a function; the limit on wall time is three times as long."""

    def __post_init__(self) -> None:
        if not self.levels or min(self.levels) < 0 or max(self.levels) > HIGHEST:
            raise ValueError(f"difficulty must be from 0 to {HIGHEST}, got {self.difficulty}")
        if self.spelling == "words" and (max(self.levels) > 1 or self.show_code):
            raise ValueError("spelling words needs a difficulty below 2 and show_code: false")
        scores = self.stage_scores
        if len(scores) != 3 or list(scores) != sorted(scores) or scores[0] < 0 or scores[2] != 1.0:
            raise ValueError(f"stage_scores must be three numbers that rise from 0 or more to 1, got {list(scores)}")
        if min(self.pool, self.validation, self.max_steps, self.max_checks) < 1:
            raise ValueError("pool, validation, max_steps and max_checks must be at least 1")
        if not 1 <= self.time_limit_s <= 3:
            raise ValueError(f"time_limit_s must be from 1 to 3, got {self.time_limit_s}")

    @property
    def levels(self) -> tuple[int, ...]:
        """`difficulty` as a tuple."""
        return (self.difficulty,) if isinstance(self.difficulty, int) else tuple(self.difficulty)
