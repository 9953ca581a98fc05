"""A pool of questions that proposers write and learn from, in the checkpoint; docs/methods/proposer_solver_judge.md.

Source: MAE, arXiv 2510.23595, whose proposers see a question of the pool in half of the tasks.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from verl_hier.errors import FileError, RecipeError
from verl_hier.graph.bounded_reading import text_lines
from verl_hier.graph.turn_table import TurnTable
from verl_hier.hookspecs import hookimpl
from verl_hier.host.constraints import Count, ZeroToOne
from verl_hier.host.specs import ScheduleSpec
from verl_hier.training.schedule import Phase, Schedule
from verl_hier_plugins.workers.proposer_solver_judge.guards import words_of

GUARDS = ("malformed", "duplicate", "low_quality", "trivial", "unsolvable")
"""Why a question does not enter the pool, in the order in which it is looked at."""


@dataclass(frozen=True)
class QuestionPoolOptions:
    """Options of `question_pool`."""

    questions: tuple[str, ...] = ()
    """Questions that the pool begins with."""
    path: str | None = None
    """A text file with further ones, one a line."""
    share: ZeroToOne = 0.5
    """Share of the tasks whose proposer is shown a question of the pool; the others are shown none."""
    capacity: Count = 10000
    """Questions that the pool holds; the oldest one leaves it first."""
    uses: Count | None = None
    """How often a question is shown before it leaves the pool; omitted: any number of times."""
    when_dry: Literal["stop", "without"] = "stop"
    """What a pool does that had questions and has none left: it stops the run, or proposers go on without."""
    threshold: ZeroToOne = 0.7
    """Least quality, by a judge, of a question that enters the pool."""
    trivial: ZeroToOne = 1.0
    """Mean score of its answers from which on a question is too easy for the pool."""
    unsolvable: ZeroToOne = 0.0
    """Mean score of its answers up to which a question counts as one that nobody can answer."""
    proposer: str = "proposer"
    """Role that writes questions."""
    solver: str = "solver"
    """Role that answers them."""
    roles: tuple[str, ...] = ()
    """Roles that learn; empty: all."""
    seed: int = 0
    """Seed of what is shown."""

    def __post_init__(self) -> None:
        if self.trivial <= self.unsolvable:
            raise ValueError(f"trivial must be above unsolvable, got {self.trivial} and {self.unsolvable}")


@dataclass
class Entry:
    """A question of the pool: the step that wrote it (0: it was given), its quality, the mean score of its answers, and
    how often it was shown."""

    question: str
    step: int = 0
    quality: float = 1.0
    solved: float = 0.5
    shown: int = 0


class QuestionPool(Schedule):
    """All or the chosen roles learn in every step. The pool grows by the questions that pass its guards."""

    def __init__(self, options: QuestionPoolOptions) -> None:
        self._options = options
        self._entries: dict[str, Entry] = {}
        for question in (*options.questions, *_read(options.path)):
            self._entries.setdefault(_key(question), Entry(question))
        self._had = bool(self._entries)

    def phase(self, step: int) -> Phase:
        """See `Schedule.phase`."""
        return Phase("joint", roles=frozenset(self._options.roles) or None)

    def told(self, step: int, tasks: Sequence[int]) -> list[dict[str, Any]] | None:
        """See `Schedule.told`: `{"questions": [one or none]}`.

        Raises:
            RecipeError: when the pool has run dry.
        """
        return [{"questions": self._show(step, task)} for task in tasks]

    def _show(self, step: int, task: int) -> list[str]:
        options = self._options
        rng = random.Random(f"{options.seed}-{step}-{task}")
        if rng.random() >= options.share:
            return []
        if not self._entries:
            if self._had and options.when_dry == "stop":
                raise RecipeError(
                    f"hier.schedule.uses: the pool of questions ran dry in step {step}: each was shown {options.uses} "
                    "times, and too few new ones passed the guards (hier/questions/… in the metrics); raise `uses`, "
                    "give more `questions`, lower `threshold`, or take `when_dry: without`."
                )
            return []
        key = rng.choice(list(self._entries))
        entry = self._entries[key]
        entry.shown += 1
        if options.uses is not None and entry.shown >= options.uses:
            del self._entries[key]
        return [entry.question]

    def table_ready(self, table: TurnTable, step: int) -> dict[str, float]:
        """See `Schedule.table_ready`; adds the column `fresh`: 0 for a question that the pool or the step has already,
        1 for every other turn. Questions are looked at in the order of the table."""
        fresh = np.ones(len(table))
        counts = dict.fromkeys(("proposed", *GUARDS, "kept"), 0)
        said = table.texts.get("question")
        quality = np.asarray(table["judge"], np.float64) if "judge" in table else np.ones(len(table))
        solved = self._solved(table, quality)
        asked = np.flatnonzero(np.asarray(table["role"]) == table.code("role", self._options.proposer))
        new: dict[str, Entry] = {}
        for turn in asked.tolist() if table.code("role", self._options.proposer) >= 0 else ():
            question = None if said is None else said[turn]
            known = question is not None and (_key(question) in self._entries or _key(question) in new)
            verdict = self._verdict(question, known, float(quality[turn]), float(solved[turn]))
            counts["proposed"] += 1
            counts[verdict or "kept"] += 1
            fresh[turn] = float(not known)
            if verdict is None and question is not None:
                new[_key(question)] = Entry(question, step, float(quality[turn]), float(solved[turn]))
        self._entries |= new
        self._had = self._had or bool(new)
        for key in list(self._entries)[: max(len(self._entries) - self._options.capacity, 0)]:
            del self._entries[key]
        table.turns["fresh"] = fresh
        return {f"hier/questions/{name}": float(count) for name, count in counts.items()} | {
            "hier/questions/pool": float(len(self._entries))
        }

    def _verdict(self, question: str | None, known: bool, quality: float, solved: float) -> str | None:
        """The first guard that keeps a question out, None when it enters; `solved` is nan where nobody answered."""
        options = self._options
        reasons = (
            question is None,
            known,
            not quality >= options.threshold,
            solved >= options.trivial,
            not solved > options.unsolvable,
        )
        return next((name for name, holds in zip(GUARDS, reasons, strict=True) if holds), None)

    def _solved(self, table: TurnTable, score: np.ndarray) -> np.ndarray:
        """(T,) mean score of the answers to each turn's question, nan without one."""
        plan = np.asarray(table["plan"])
        answers = (np.asarray(table["role"]) == table.code("role", self._options.solver)) & (plan >= 0)
        count = np.bincount(plan[answers], minlength=len(table))
        total = np.bincount(plan[answers], score[answers], len(table))
        return np.divide(total, count, out=np.full(len(table), np.nan), where=count > 0)

    def state_dict(self) -> dict[str, Any]:
        """See `Schedule.state_dict`."""
        return {"entries": [asdict(entry) for entry in self._entries.values()], "had": self._had}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See `Schedule.load_state_dict`."""
        self._entries = {_key(entry["question"]): Entry(**entry) for entry in state["entries"]}
        self._had = state["had"]


def _key(question: str) -> str:
    """What two questions share that are one."""
    return " ".join(words_of(question))


def _read(path: str | None) -> list[str]:
    if path is None:
        return []
    try:
        return [line.strip() for _, line in text_lines(Path(path))]
    except FileError as error:
        raise RecipeError(f"hier.schedule.path: {error}") from error


@hookimpl
def hier_schedules() -> ScheduleSpec:
    """The `question_pool` schedule."""
    return ScheduleSpec(
        "question_pool",
        QuestionPool,
        QuestionPoolOptions,
        summary="all or chosen roles learn; keeps a pool of questions that proposers write and are shown",
        source="MAE, arXiv 2510.23595",
        provides=("fresh",),
        named_roles=lambda options: (options.proposer, options.solver),
    )
