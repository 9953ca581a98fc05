"""Heads of the critic: their values as columns of the turn table, and what each of them learns.

Shapes: T turns, A action tokens of the table, N response tokens of all rows one after the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from verl_hier.credit import Credit
from verl_hier.errors import CreditError
from verl_hier.graph import TurnTable
from verl_hier.host.specs import ValueHeadSpec
from verl_hier.training.ledger import Ledger

Heads = Mapping[str, ValueHeadSpec]
Array = NDArray[Any]


def values_of(head: str) -> str:
    """The field of a batch with a head's values, one for each response token."""
    return f"values_{head}"


def returns_of(head: str) -> str:
    """The field of a batch with what a head learns."""
    return f"returns_{head}"


def mask_of(head: str) -> str:
    """The field of a batch that is 1 where a head learns."""
    return f"value_mask_{head}"


def add_values(ledger: Ledger, heads: Heads, flat: Mapping[str, Array]) -> None:
    """Add the column of each head to the turn table; a turn without the place that a head reads has the value 0.

    Args:
        ledger: of the step; its table has the token columns of the head's places.
        heads: heads of the recipe by name.
        flat: `values_of` each head, (N,).
    """
    table, positions = ledger.table, ledger.token_positions()
    on_action = positions >= 0
    for name, head in heads.items():
        at_tokens = np.zeros(len(table.tokens["turn"]))
        at_tokens[positions[on_action]] = flat[values_of(name)][on_action]
        if head.places is None:
            table.tokens[head.column.removeprefix("tokens.")] = at_tokens
        else:
            places = places_of(head, table)
            table.turns[head.column] = np.append(at_tokens, 0.0)[np.where(places >= 0, places, -1)]


def places_of(head: ValueHeadSpec, table: TurnTable) -> NDArray[np.int64]:
    """(T,) the token in front of which a head reads each turn, -1 for none.

    Raises:
        CreditError: when the head names a token of another turn, or not one place a turn.
    """
    assert head.places is not None
    places = np.asarray(head.places(table), np.int64)
    if places.shape != (len(table),):
        raise CreditError(f"value head {head.name!r} must name one place for each of the {len(table)} turns.")
    turn = np.append(np.asarray(table["tokens.turn"]), -1)
    strange = (places >= 0) & (turn[np.clip(places, 0, len(turn) - 1)] != np.arange(len(table)))
    if strange.any():
        raise CreditError(
            f"value head {head.name!r} reads turn {int(strange.argmax())} at a token of another turn; places count "
            "through the token columns of the table."
        )
    return places


def learned_fields(ledger: Ledger, heads: Heads, credit: Credit, mask: Array) -> dict[str, Array]:
    """What each head learns, and where: `returns_of` and `mask_of` it, (N,) each.

    Args:
        ledger: of the step.
        heads: heads of the recipe by name.
        credit: of the step, with the targets of the heads.
        mask: (N,) 1 on tokens that may be trained; tokens without an advantage are among them.

    Raises:
        CreditError: for a head without targets, or with targets of the wrong length.
    """
    fields: dict[str, Array] = {}
    for name, head in heads.items():
        target = _at_tokens(ledger.table, head, credit)
        known = np.isfinite(target)
        rows = ledger.spread(known.astype(np.float64), "token", "once") * (np.asarray(mask) > 0)
        fields[mask_of(name)] = rows
        fields[returns_of(name)] = ledger.spread(np.where(known, target, 0.0), "token", "once") * rows
    return fields


def _at_tokens(table: TurnTable, head: ValueHeadSpec, credit: Credit) -> Array:
    """(A,) the target of a head at every token that it learns from, NaN elsewhere."""
    if head.name not in credit.targets:
        raise CreditError(
            f"hier.value_heads: the estimator gives the head {head.name!r} nothing to learn; remove it there."
        )
    target = np.asarray(credit.targets[head.name], np.float64)
    tokens = len(table["tokens.turn"])
    expected = tokens if head.places is None else len(table)
    if target.shape != (expected,):
        raise CreditError(
            f"targets of the value head {head.name!r} have the shape {target.shape}; its places need ({expected},)."
        )
    if head.places is None:
        return target
    places, found = places_of(head, table), np.full(tokens, np.nan)
    found[places[places >= 0]] = target[places >= 0]
    return found


def head_metrics(heads: Heads, flat: Mapping[str, Array], fields: Mapping[str, Array]) -> dict[str, float]:
    """How well each head knew what it learns now, and how many tokens it learns from.

    Args:
        heads: heads of the recipe by name.
        flat: `values_of` each head, (N,).
        fields: of `learned_fields`.

    Returns:
        `hier/critic/<head>/…`; the explained variance is left out where the targets do not vary.
    """
    found: dict[str, float] = {}
    for name in heads:
        chosen = fields[mask_of(name)] > 0
        found[f"hier/critic/{name}/trained_share"] = float(chosen.mean()) if chosen.size else 0.0
        if not chosen.any():
            continue
        target, value = fields[returns_of(name)][chosen], flat[values_of(name)][chosen]
        found[f"hier/critic/{name}/target_mean"] = float(target.mean())
        found[f"hier/critic/{name}/value_mean"] = float(value.mean())
        if target.var() > 0:
            found[f"hier/critic/{name}/explained_variance"] = float(1.0 - (target - value).var() / target.var())
    return found
