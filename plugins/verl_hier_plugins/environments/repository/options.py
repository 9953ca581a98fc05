"""The options of `repository` in a recipe: the schema of `hier.environment`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from verl_hier.host.constraints import NonNegative

HIGHEST = 3


@dataclass(frozen=True)
class RepositoryOptions:
    """Options of `repository`."""

    difficulty: int | tuple[int, ...] = 0
    """0: a bug in a function of one whole number, and the task names a test that fails; 1: also lists and two
    arguments, functions that are not written yet, and more modules; 2: also texts, and bugs that show in tests of
    another module only; 3: two things are wrong, and the task names no test. A list mixes them evenly."""
    pool: int = 480
    """Tasks in the training split."""
    validation: int = 64
    """Tasks in each held-out split."""
    seed: int = 0
    """Seed of the task pools. Splits are disjoint for every seed."""
    max_steps: int = 16
    """Actions before the episode is truncated."""
    actions: Literal["plain", "tags"] = "plain"
    """The form of actions in texts and demonstrations: `read PATH` or `<read>PATH</read>`. Both are understood."""
    spelling: Literal["symbols", "words"] = "symbols"
    """`words` spells code, numbers and answers in words, `replace core two return n plus three`, for models with a
    small vocabulary; files are named by their modules. Needs difficulty 0."""
    output_chars: int = 4000
    """Characters of a file or of the results of tests that are shown; the middle of longer ones is left out."""
    invalid_penalty: NonNegative = 0.02
    """Subtracted from the reward of a turn that is no action, or one that is not possible."""
    time_limit_s: int = 1
    """Processor seconds of one run of the tests; the limit on wall time is three times as long."""

    def __post_init__(self) -> None:
        if not self.levels or min(self.levels) < 0 or max(self.levels) > HIGHEST:
            raise ValueError(f"difficulty must be from 0 to {HIGHEST}, got {self.difficulty}")
        if self.spelling == "words" and (max(self.levels) > 0 or self.actions == "tags"):
            raise ValueError("spelling words needs difficulty 0 and actions: plain")
        if min(self.pool, self.validation, self.max_steps) < 1:
            raise ValueError("pool, validation and max_steps must be at least 1")
        if self.output_chars < 200:
            raise ValueError(f"output_chars must be at least 200, got {self.output_chars}")
        if not 1 <= self.time_limit_s <= 3:
            raise ValueError(f"time_limit_s must be from 1 to 3, got {self.time_limit_s}")

    @property
    def levels(self) -> tuple[int, ...]:
        """`difficulty` as a tuple."""
        return (self.difficulty,) if isinstance(self.difficulty, int) else tuple(self.difficulty)
