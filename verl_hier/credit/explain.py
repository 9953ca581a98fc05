"""Why a number: what kernels and estimators computed on the way to a credit, kept while somebody asks.

An estimator names the terms of its sum with `term`, and the group kernel adds the comparisons behind them. Nothing is
kept, and next to nothing is spent, unless `explaining` is on. An explanation is what was computed and no second
version of it: `explain` returns terms only if they add up to the credit, bit by bit.

Shapes as in `TurnTable`: T turns, E episodes, S steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from verl_hier.credit.credit import Credit

if TYPE_CHECKING:
    from verl_hier.credit.estimate import Estimator
    from verl_hier.graph.turn_table import TurnTable

Unit = Literal["turn", "episode"]
Floats = NDArray[np.float64]


@dataclass
class Comparison:
    """Scores compared within their groups: (score - centre) times factor. Shapes: N rows, which are turns or episodes.

    Attributes:
        scores: (N,) what was compared.
        keys: (N,) group of each row; rows that do not count may be in a group of their own.
        votes: (N,) votes of each row in the statistics of its group; 0 for rows that do not count.
        centre: (N,) what was subtracted.
        spread: (N,) scale of the group before `eps`; 1 where the scores are not scaled.
        factor: (N,) what the difference was multiplied by; 0 in groups of one vote or without spread.
        result: (N,).
        rule: names of the centre and the scale, and `eps`.
        unit: what a row is.
    """

    scores: Floats
    keys: NDArray[np.int64]
    votes: Floats
    centre: Floats
    spread: Floats
    factor: Floats
    result: Floats
    rule: dict[str, Any]
    unit: Unit = "turn"


@dataclass
class Term:
    """A summand of the credit.

    Attributes:
        name: a few words.
        values: (T,) or (E,), by `unit`.
        unit: whether there is one number a turn or an episode.
        weight: what it is multiplied by in the sum.
        figures: further arrays of the same length that the term was made of, by name.
        comparisons: what was compared on the way to it.
    """

    name: str
    values: Floats
    unit: Unit
    weight: float
    figures: dict[str, Floats]
    comparisons: list[Comparison]


@dataclass
class Record:
    """What was computed: terms, and comparisons that no term has claimed yet."""

    terms: list[Term] = field(default_factory=list)
    comparisons: list[Comparison] = field(default_factory=list)


_RECORD: ContextVar[Record | None] = ContextVar("record", default=None)


@contextmanager
def explaining() -> Iterator[Record]:
    """Keep what is computed within."""
    record = Record()
    token = _RECORD.set(record)
    try:
        yield record
    finally:
        _RECORD.reset(token)


def recording() -> bool:
    """Whether anybody asks for an explanation."""
    return _RECORD.get() is not None


def compared(comparison: Comparison) -> None:
    """Keep a comparison, when somebody asks."""
    record = _RECORD.get()
    if record is not None:
        record.comparisons.append(comparison)


def of_episodes(values: Floats) -> Floats:
    """The values, whose comparison was one of episodes."""
    record = _RECORD.get()
    if record is not None and record.comparisons:
        record.comparisons[-1].unit = "episode"
    return values


def term(name: str, values: Floats, unit: Unit = "turn", weight: float = 1.0, **figures: ArrayLike) -> Floats:
    """The values; when somebody asks, they are kept as a summand of the credit.

    Args:
        name: a few words.
        values: (T,) or (E,), by `unit`.
        unit: whether there is one number a turn or an episode.
        weight: what the estimator multiplies them by.
        **figures: arrays of the same length that the values were made of.
    """
    record = _RECORD.get()
    if record is not None:
        kept = {label.replace("_", " "): np.array(each, np.float64) for label, each in figures.items()}
        record.terms.append(Term(name, np.array(values), unit, weight, kept, record.comparisons))
        record.comparisons = []
    return values


def explain(spec: Estimator, table: TurnTable, options: Any = None) -> tuple[Credit, list[Term]]:
    """The credit of a batch and its terms; none when the estimator names none, or when they do not make the credit.

    Raises:
        CreditError: as `estimate`.
    """
    from verl_hier.credit.estimate import estimate

    with explaining() as record:
        credit = estimate(spec, table, options)
    return credit, record.terms if _adds_up(table, credit, record.terms) else []


def _adds_up(table: TurnTable, credit: Credit, terms: list[Term]) -> bool:
    """Whether the credit is the sum of the terms, on every turn that is trained, bit by bit."""
    from verl_hier.credit.paths import share, step_mean, trained_only

    units = {each.unit for each in terms}
    if len(units) != 1 or credit.per == "token":
        return False
    total = np.zeros(len(terms[0].values))
    for each in terms:
        total = total + (each.values if each.weight == 1.0 else each.weight * each.values)
    values = np.asarray(credit.values, np.float64)
    if units == {"turn"}:
        return credit.per == "turn" and np.array_equal(trained_only(table, total), trained_only(table, values))
    steps = total[table.step_episode]
    ways = [share(table, steps, rule) for rule in ("repeat", "average", "owner")]
    ways.append(Credit(trained_only(table, step_mean(table, steps))))
    return any(way.per == credit.per and np.array_equal(way.values, values) for way in ways)
