"""The options of `python_tool` in a recipe: the schema of `hier.environment`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from verl_hier.host.constraints import Count, CountOrZero, NonNegative

ARITHMETIC, LAST_DIGIT = "arithmetic", "last_digit"
GENERATED = (ARITHMETIC, LAST_DIGIT)
"""Families that are generated here, without a package."""
REASONING_GYM = {
    "arithmetic": (
        *("basic_arithmetic", "bitwise_arithmetic", "calendar_arithmetic", "chain_sum", "count_bits"),
        *("decimal_arithmetic", "decimal_chain_sum", "dice", "fraction_simplification", "gcd", "gsm_symbolic", "lcm"),
        *("leg_counting", "number_format", "power_function", "prime_factorization", "products"),
    ),
    "logic": ("aiw", "circuit_logic", "knights_knaves", "self_reference", "syllogism", "zebra_puzzles"),
}
"""Families of reasoning-gym by category. Left out are those whose scorer runs an answer as code, `time_intervals`,
whose tasks depend on the day, and `propositional_logic`, which is won by repeating a premise."""

FAMILIES = (*GENERATED, *REASONING_GYM["arithmetic"], *REASONING_GYM["logic"])


@dataclass(frozen=True)
class PythonToolOptions:
    """Options of `python_tool`."""

    families: tuple[str, ...] = (ARITHMETIC,)
    """`arithmetic` and `last_digit` are generated here; every other name is a family of reasoning-gym. Tasks alternate
    between them."""
    tool: bool = True
    """Whether there is a Python tool. Without it the agent can only think and answer."""
    last_number: bool = False
    """Whether the last number of a turn is its answer, for chat models that keep to no form. Only without a tool, and
    with the spelling `symbols`."""
    difficulty: CountOrZero = 0
    """Level of every family, from 0; a family with fewer levels stays at its highest."""
    data_path: str = ""
    """Parquet with `question` and `answer` (`… #### 42`) instead of families: a file, or a directory with
    `train*.parquet`, `val*.parquet` and `test*.parquet`."""
    pool: CountOrZero = 480
    """Tasks in the training split; 0 takes all rows of a data set."""
    validation: CountOrZero = 64
    """Tasks in each held-out split; 0 takes all rows of a data set."""
    seed: int = 0
    """Seed of the task pools. Splits are disjoint for every seed."""
    chain: Count = 1
    """Questions of one family that an episode asks one after the other; each counts for itself, and the episode is won
    when all of them are right."""
    max_steps: int = 6
    """Turns after which an episode is truncated; in a chain, those of each question, behind which the next one is
    asked."""
    spelling: Literal["symbols", "words"] = "symbols"
    """`words` spells numbers digit by digit and signs as words (`one two plus three`), for models with a small
    vocabulary. Only for the families `arithmetic` and `last_digit`."""
    partial_credit: bool = False
    """Reward is the scorer's score, between 0 and 1; otherwise it is 1 for a full score and 0 for less."""
    invalid_penalty: NonNegative = 0.02
    """Subtracted from the reward of a turn that is neither a call nor an answer."""
    call_penalty: NonNegative = 0.0
    """Subtracted from the reward of each call of the tool."""
    output_chars: int = 800
    """Characters of a call's output that the agent sees; the middle of a longer one is left out."""
    time_limit_s: int = 2
    """Processor seconds of one call; the limit on wall time is three times as long."""
    memory_mb: Count = 256
    """Address space of one call."""

    def __post_init__(self) -> None:
        unknown = [family for family in self.families if family not in FAMILIES]
        if unknown or not self.families:
            raise ValueError(
                f"families must name some of {', '.join(FAMILIES)}; got {list(self.families)} (those whose scorer "
                "runs an answer as code are left out on purpose)"
            )
        if self.spelling == "words" and (not set(self.families) <= set(GENERATED) or self.data_path):
            raise ValueError(f"spelling words is for families {list(GENERATED)} only")
        if self.last_number and (self.tool or self.spelling == "words"):
            raise ValueError("last_number is for tool: false and spelling: symbols only")
        if not self.data_path and not (self.pool and self.validation):
            raise ValueError("pool and validation must be at least 1 for generated tasks")
        if self.max_steps < 1 or self.output_chars < 20:
            raise ValueError("max_steps must be at least 1 and output_chars at least 20")
        if not 1 <= self.time_limit_s <= 6:
            raise ValueError(f"time_limit_s must be from 1 to 6, got {self.time_limit_s}")
