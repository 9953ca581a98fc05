"""Why a turn got its credit: the terms that the estimator itself added up, with what they were compared with."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from verl_hier.credit import Credit, turn_credit
from verl_hier.credit.explain import Comparison, Term, explain
from verl_hier.errors import CreditError
from verl_hier.graph import TurnTable
from verl_hier.graph.columnar.table import complete_episodes, table_of
from verl_hier.host.specs import EstimatorSpec
from verl_hier.viewer.steps import Step

View = dict[str, Any]
Ints = NDArray[np.int64]
KEPT = 2
"""Steps whose credit is kept after it was asked for."""
_SAME = 1e-6
"""Difference up to which a stored and a computed credit count as one; tokens are trained in single precision."""


@dataclass(frozen=True)
class Method:
    """An estimator with its options.

    Attributes:
        spec: the estimator.
        options: None for its defaults.
        ran: whether it is the one that the run trained with.
    """

    spec: EstimatorSpec
    options: Any = None
    ran: bool = False


@dataclass(frozen=True)
class _Computed:
    table: TurnTable
    turn_of: list[Ints]
    credit: list[tuple[Credit, list[Term]] | str]


class Explainer:
    """Computes the credit of stored steps again, and keeps what the estimators say about it."""

    def __init__(self, methods: Sequence[Method], prepare: Callable[[TurnTable, int], Any] | None = None) -> None:
        """
        Args:
            methods: the estimators to ask, the one that ran first.
            prepare: called with each step's table before the estimators, as plugins shape it during a run.
        """
        self.methods = tuple(methods)
        self._prepare = prepare
        self._kept: OrderedDict[tuple[int, str], _Computed] = OrderedDict()

    def view(self, step: Step, uid: str) -> list[View]:
        """What each estimator gave the turns of a group, and why.

        Returns:
            for each method its `name`, `options`, `doc` and `ran`; `says`, a sentence, where it cannot tell; else
            `turns` (numbers of the nodes), their `credit`, `weight` in the loss, and the `terms`, see `_term`.
        """
        if not self.methods:
            return []
        found = self._computed(step)
        place = step.uids().index(uid)
        nodes = found.turn_of[place]
        kept = np.flatnonzero(nodes >= 0)
        attempts = step.attempts(uid)
        complete = np.flatnonzero(complete_episodes(step.columns)[attempts])
        rows = {"turn": nodes[kept], "episode": np.flatnonzero(np.asarray(found.table["episodes.group"]) == place)}
        ids = {"turn": kept, "episode": complete}
        stored = step.credit[step.turns(uid)]
        views = []
        for method, credit in zip(self.methods, found.credit, strict=True):
            view: View = {
                "name": method.spec.name,
                "summary": method.spec.summary,
                "doc": method.spec.doc,
                "options": {} if method.options is None else asdict(method.options),
                "ran": method.ran,
            }
            if isinstance(credit, str):
                views.append(view | {"says": credit})
            else:
                agreement = _agreement(found, credit[0], nodes, stored)
                views.append(view | _explained(found.table, *credit, rows, ids) | agreement)
        return views

    def _computed(self, step: Step) -> _Computed:
        key = step.number, str(step.source)
        if key not in self._kept:
            learns = [_learner(phase) for phase in step.phases]
            table, turn_of = table_of(step.columns, learns)
            if self._prepare is not None:
                self._prepare(table, step.number)
            self._kept[key] = _Computed(table, turn_of, [_credit(method, table) for method in self.methods])
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        return self._kept[key]


def _learner(phase: View) -> Callable[[str, int], bool]:
    levels, roles = phase.get("levels"), phase.get("roles")
    return lambda role, level: (levels is None or level in levels) and (roles is None or role in roles)


def _credit(method: Method, table: TurnTable) -> tuple[Credit, list[Term]] | str:
    if method.spec.native:
        return "verl computes this credit itself, so nothing is known of its terms."
    if not len(table):
        return "No turn of this step belongs to a complete episode."
    try:
        return explain(method.spec, table, method.options)
    except CreditError as error:
        return str(error)


def _explained(
    table: TurnTable, credit: Credit, terms: list[Term], rows: dict[str, Ints], ids: dict[str, Ints]
) -> View:
    mine = rows["turn"]
    weight = np.ones(len(table)) if credit.weight is None else np.asarray(credit.weight, np.float64)
    return {
        "per": credit.per,
        "turns": ids["turn"].tolist(),
        "credit": turn_credit(table, credit)[mine].tolist(),
        "weight": weight[mine].tolist(),
        "trained": np.asarray(table["trained"], bool)[mine].tolist(),
        "terms": [_term(each, rows, ids) for each in terms],
    }


def _agreement(found: _Computed, credit: Credit, nodes: Ints, stored: NDArray[np.float64]) -> View:
    """How many turns of the group have another credit in the store, and how many of them another sign."""
    kept = np.flatnonzero((nodes >= 0) & ~np.isnan(stored))
    now, then = turn_credit(found.table, credit)[nodes[kept]], stored[kept]
    differs = np.abs(now - then) > _SAME * np.maximum(1.0, np.abs(then))
    return {"differs": kept[differs].tolist(), "flips": kept[now * then < 0].tolist()}


def _term(term: Term, rows: dict[str, Ints], ids: dict[str, Ints]) -> View:
    """A term: `name`, `unit`, `weight`, and for each unit of the group `ids`, `values` and `figures`."""
    mine = rows[term.unit]
    return {
        "name": term.name,
        "unit": term.unit,
        "weight": term.weight,
        "ids": ids[term.unit].tolist(),
        "values": term.values[mine].tolist(),
        "figures": {name: values[mine].tolist() for name, values in term.figures.items()},
        "comparisons": [_comparison(each, rows, ids) for each in term.comparisons],
    }


def _comparison(found: Comparison, rows: dict[str, Ints], ids: dict[str, Ints]) -> View:
    """A comparison: `unit`, `rule`, and a column for each figure of the units that were compared."""
    mine = rows[found.unit]
    counts = (found.votes[mine] > 0) | (found.result[mine] != 0)
    mine, names = mine[counts], ids[found.unit][counts]
    counted = int(((found.votes > 0) & np.isin(found.keys, found.keys[mine])).sum())
    columns = ("keys", "scores", "votes", "centre", "spread", "factor", "result")
    return {
        "unit": found.unit,
        "rule": found.rule,
        "ids": names.tolist(),
        "elsewhere": max(counted - int((found.votes[mine] > 0).sum()), 0),
        **{name: getattr(found, name)[mine].tolist() for name in columns},
    }
