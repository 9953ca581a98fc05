"""The options of the search environment: the schema of `hier.environment` when its name is `search`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from verl_hier.host.constraints import NonNegative, ZeroToOne

LEVELS: dict[str, tuple[int, bool]] = {"tiny": (120, False), "small": (1_000, True), "large": (20_000, True)}
"""Entities of a generated world, and whether its documents are written in several sentences of changing wording.
A model of 200k parameters can learn `tiny` on a CPU."""

FEWEST_ENTITIES = 24


@dataclass(frozen=True)
class SearchOptions:
    """Options of the `search` environment."""

    level: Literal["tiny", "small", "large"] = "tiny"
    """Size and style of a generated world, see `LEVELS`."""
    entities: int | None = None
    """Documents of a generated world; overrides the level."""
    hops: int | tuple[int, ...] = 2
    """Number of facts that a generated question joins; a list mixes them evenly."""
    pool: int = 480
    """Questions in the training split; 0 means all of a data file."""
    validation: int = 64
    """Questions in each held-out split; 0 means all of a data file."""
    seed: int = 0
    """Seed of the world and of the choice of questions."""
    data_path: str = ""
    """HotpotQA-style questions (Parquet, JSONL or JSON); empty generates a world."""
    validation_path: str = ""
    """Questions of the held-out splits; empty holds out a fifth of `data_path`."""
    corpus_path: str = ""
    """Documents as JSONL with `title` and `text`; empty takes the `context` of the questions."""
    index_path: str = ""
    """Folder that keeps the index of a corpus from files, so that it is built once and read from disk; empty builds it
    in the memory of each environment process."""
    web_share: ZeroToOne = 0.25
    """Share of the documents that only `web` finds; `search` finds the others. A document with a `collection` (`local`
    or `web`) is in that one."""
    top_k: int = 3
    """Maximum number of documents that a search returns."""
    max_characters: int = 500
    """Maximum number of characters that are shown of each document."""
    max_steps: int = 12
    """Actions after which an episode is truncated."""
    actions: Literal["plain", "tags"] = "plain"
    """The form of actions in texts and demonstrations: `plain` words or XML `tags`. Both are always understood."""
    observation: Literal["full", "short"] = "full"
    """`full` numbers the documents and explains the actions; `short` is one line of titles and texts."""
    reward: Literal["em", "f1", "none"] = "em"
    """Reward of an answer: `em` (1 for an exact match), `f1` (overlap of words), or `none`, where `hier.rewards` judges
    answers alone."""
    invalid_penalty: NonNegative = 0.02
    """Subtracted from the reward of a turn that is not an action."""

    def __post_init__(self) -> None:
        for name, least in (("top_k", 1), ("max_characters", 1), ("max_steps", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")
        if self.generated:
            self._check_generated()
        elif self.pool < 0 or self.validation < 0:
            raise ValueError("pool and validation must not be negative")

    def _check_generated(self) -> None:
        lost = [name for name in ("validation_path", "corpus_path", "index_path") if getattr(self, name)]
        if lost:
            raise ValueError(f"{lost[0]} needs data_path, the questions that belong to it")
        if not self.hop_counts or min(self.hop_counts) < 1:
            raise ValueError(f"hops must be at least 1, got {self.hops}")
        if self.size < FEWEST_ENTITIES:
            raise ValueError(f"entities must be at least {FEWEST_ENTITIES}, got {self.size}")
        if self.pool < 1 or self.validation < 1:
            raise ValueError("pool and validation must be at least 1 for generated questions")

    @property
    def generated(self) -> bool:
        """Whether the world is generated."""
        return not self.data_path

    @property
    def hop_counts(self) -> tuple[int, ...]:
        """`hops` as a tuple."""
        return (self.hops,) if isinstance(self.hops, int) else tuple(self.hops)

    @property
    def size(self) -> int:
        """Entities of a generated world."""
        return LEVELS[self.level][0] if self.entities is None else self.entities

    @property
    def prose(self) -> bool:
        """Whether generated documents have several sentences of changing wording."""
        return LEVELS[self.level][1]
