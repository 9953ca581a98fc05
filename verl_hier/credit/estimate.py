"""Run an estimator on a turn table: its declared needs are checked before, its result after."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from verl_hier.credit.columns import missing_column
from verl_hier.credit.credit import Credit
from verl_hier.errors import CreditError

if TYPE_CHECKING:
    from verl_hier.graph.turn_table import TurnTable


class Estimator(Protocol):
    """What is asked of an estimator here; `host.specs.EstimatorSpec` has it, and says what each field means."""

    @property
    def name(self) -> str: ...
    @property
    def factory(self) -> Callable[..., Any]: ...
    @property
    def options(self) -> type: ...
    @property
    def requires(self) -> tuple[str, ...]: ...


def check_needs(spec: Estimator, columns: Iterable[str]) -> None:
    """Refuse an estimator whose declared columns are not all among `columns`.

    Args:
        spec: the estimator.
        columns: names as in `TurnTable.columns()`; before a run, the standard ones plus everybody's `provides`.

    Raises:
        CreditError: one sentence that names the column, who provides it, and the recipe line.
    """
    known = set(columns)
    for column in spec.requires:
        if column not in known:
            raise CreditError(missing_column(spec.name, column))


def estimate(spec: Estimator, table: TurnTable, options: Any = None) -> Credit:
    """The credit of one batch.

    Args:
        spec: a registered estimator.
        table: the turn table; not mutated.
        options: the spec's options dataclass, its defaults when omitted.

    Returns:
        `Credit` with finite values of the length that its granularity requires.

    Raises:
        CreditError: for a missing column, a NaN in a required one (named with its turn), states that the environment
            does not name, or an estimator that returns something else than it declares.
    """
    check_needs(spec, table.columns())
    check_finite(spec, table)
    if len(table) and "anchor" in spec.requires and not (np.asarray(table["anchor"]) >= 0).any():
        raise CreditError(
            missing_column(spec.name, "anchor").rstrip(".") + "; every anchor of this batch is -1 (no state named)."
        )
    try:
        credit = Credit.of(spec.factory(table, spec.options() if options is None else options))
    except CreditError as error:
        if spec.name in str(error):
            raise
        raise CreditError(f"estimator {spec.name!r}: {error}") from error
    _check_result(spec.name, table, credit)
    return credit


def check_finite(spec: Estimator, table: TurnTable) -> None:
    """Refuse NaN and infinity in the float columns that the estimator requires, and always in `reward`.

    `episodes.success` is NaN by definition when the environment does not report it.

    Raises:
        CreditError: naming the column and its first bad entry.
    """
    for column in dict.fromkeys(("reward", *spec.requires)):
        if column not in table or column == "episodes.success":
            continue
        values = np.asarray(table[column])
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            where = int(np.flatnonzero(~np.isfinite(values))[0])
            home, _, name = column.rpartition(".")
            kind = {"": "turn", "episodes": "episode", "tokens": "token"}[home]
            raise CreditError(
                f"{kind} column {name!r} must be finite: entry {where} is {values[where]}; estimator {spec.name!r} "
                "reads it. Look for a reward function or critic that returns no number."
            )


def _check_result(name: str, table: TurnTable, credit: Credit) -> None:
    tokens = len(next(iter(table.tokens.values()), ()))
    expected = {"turn": len(table), "step": len(table.step_turn), "token": tokens}[credit.per]
    values = np.asarray(credit.values)
    if values.shape != (expected,):
        raise CreditError(
            f"estimator {name!r} returned values of shape {values.shape}; per={credit.per!r} needs ({expected},)."
        )
    if not np.isfinite(values).all():
        raise CreditError(f"estimator {name!r} returned {values[~np.isfinite(values)][0]}.")
    if credit.tokens is not None and np.asarray(credit.tokens).shape != (tokens,):
        raise CreditError(f"estimator {name!r} must say of each of the {tokens} action tokens whether it is trained.")
    if credit.weight is not None:
        weight = np.asarray(credit.weight)
        if weight.shape != (len(table),) or not (weight >= 0).all():
            raise CreditError(f"estimator {name!r} must return one loss weight of at least 0 for each turn.")
    if credit.factor is not None:
        factor = np.asarray(credit.factor)
        if factor.shape != (tokens,) or not np.isfinite(factor).all():
            raise CreditError(
                f"estimator {name!r} must return one finite factor for each of the {tokens} action tokens."
            )
