"""Computes the credit of stored rollout graphs with any estimator, and compares several estimators."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from verl_hier.credit import Credit, turn_credit
from verl_hier.credit.columns import COLUMNS
from verl_hier.credit.estimate import estimate
from verl_hier.errors import CreditError, FileError, GraphError, RecipeError, refusal
from verl_hier.graph import TurnTable, read_graphs
from verl_hier.graph.atomic_write import atomic_write, write_records
from verl_hier.graph.columnar.encode import encode
from verl_hier.graph.columnar.layout import Columns
from verl_hier.graph.columnar.reading import read_columns
from verl_hier.graph.columnar.table import table_of
from verl_hier.graph.places import place
from verl_hier.graph.steps import is_step
from verl_hier.graph.storage import graph_parts
from verl_hier.host.options import build_options
from verl_hier.host.specs import EstimatorSpec

PathLike = str | os.PathLike[str]
Prepare = Callable[[TurnTable, int], Any]
Floats = NDArray[np.float64]
SUFFIXES = (".jsonl", ".parquet")
ROWS = 4096
"""Rows that are turned into records at a time."""


@dataclass(frozen=True)
class Batch:
    """The rollouts of one trainer step and their turn table; statistics never cross trainer steps.

    Attributes:
        step: trainer step.
        columns: of its tasks.
        table: their turns.
        turn_of: for each task, the turn of each of its nodes in the table; -1 for nodes of lost episodes.
    """

    step: int
    columns: Columns
    table: TurnTable
    turn_of: list[NDArray[np.int64]]


@dataclass(frozen=True)
class Comparison:
    """How far several estimators agree on the trained turns of the same graphs.

    Attributes:
        names: names of the n estimators, in the given order.
        turns: number of trained turns that were compared.
        rank: (n, n) Spearman correlation of the credit; NaN where one of the two is constant.
        flips: (n, n) share of the turns to which two estimators give credit of opposite signs.
        nonzero: (n,) share of the turns whose credit is not zero.
    """

    names: tuple[str, ...]
    turns: int
    rank: Floats
    flips: Floats
    nonzero: Floats

    def rows(self) -> list[dict[str, Any]]:
        """One mapping for each estimator: `name`, `nonzero`, and `rank` and `flips` against the first estimator."""
        return [
            {"name": name, "nonzero": float(share), "rank": float(rank), "flips": float(flips)}
            for name, share, rank, flips in zip(self.names, self.nonzero, self.rank[0], self.flips[0], strict=True)
        ]


def credit(
    estimator: EstimatorSpec | str,
    source: PathLike,
    out: PathLike,
    settings: Mapping[str, Any] | None = None,
    *,
    prepare: Prepare | None = None,
) -> int:
    """Write the credit of every turn of stored graphs.

    Args:
        estimator: a spec, or the name of a built-in one.
        source: store, step, graph file, or a directory of them; see `verl_hier.graph.read_graphs`.
        out: `.jsonl` or `.parquet`, one record for each turn: step, uid, node, episode, agent, role, level, turn,
            trained, reward, return, credit, weight.
        settings: options of the estimator, as in a recipe's `hier.estimator` block.
        prepare: called with each step's table before the estimator, for instance to shape role rewards.

    Returns:
        the number of turns written.

    Raises:
        GraphError: for a source that is empty, damaged or written by a newer version.
        RecipeError: for an unknown option, one of a wrong type, or an output of another suffix.
        CreditError: for a column that the rollouts do not hold, or a reward that is no finite number.
        PluginError: for an unknown estimator.
    """
    target = Path(out)
    if target.suffix not in SUFFIXES:
        raise RecipeError(f"{target} has no known suffix for credit: use {' or '.join(SUFFIXES)}.")
    spec = _spec(estimator)
    options = build_options(spec, settings or {})
    records: list[pa.Table] = []
    for batch in batches(source):
        if prepare is not None:
            prepare(batch.table, batch.step)
        _require_columns(spec, batch.table)
        records.append(_records(batch, estimate(spec, batch.table, options)))
    found = pa.concat_tables(records)
    try:
        if target.suffix == ".parquet":
            with atomic_write(target) as beside:
                pq.write_table(found, beside, compression="zstd")
        else:
            write_records(target, (record for batch in found.to_batches(ROWS) for record in batch.to_pylist()))
    except OSError as error:
        raise CreditError(f"cannot write credit to {target}: {refusal(error)}.") from error
    return len(found)


def compare(
    estimators: Sequence[EstimatorSpec | str],
    source: PathLike,
    settings: Mapping[str, Mapping[str, Any]] | None = None,
    *,
    prepare: Prepare | None = None,
) -> Comparison:
    """Compute the credit of the same graphs with several estimators, and measure how far they agree.

    Args:
        estimators: specs or names of built-in ones, at least two.
        source: store, step, graph file, or a directory of them.
        settings: options by estimator name.
        prepare: called with each step's table before the estimators.

    Raises:
        As `credit`.
    """
    if len(estimators) < 2:
        raise RecipeError("name at least two estimators to compare, for instance `--compare grpo,gigpo`.")
    specs = [_spec(estimator) for estimator in estimators]
    options = [build_options(spec, (settings or {}).get(spec.name, {})) for spec in specs]
    columns: list[list[Floats]] = [[] for _ in specs]
    for batch in batches(source):
        if prepare is not None:
            prepare(batch.table, batch.step)
        trained = np.asarray(batch.table["trained"], bool)
        for column, spec, chosen in zip(columns, specs, options, strict=True):
            _require_columns(spec, batch.table)
            column.append(turn_credit(batch.table, estimate(spec, batch.table, chosen))[trained])
    values = [np.concatenate(column) for column in columns]
    if values[0].size == 0:
        raise CreditError("the graphs hold no turn that is trained.")
    pairs = [[(_rank_correlation(a, b), float((a * b < 0).mean())) for b in values] for a in values]
    return Comparison(
        names=tuple(spec.name for spec in specs),
        turns=values[0].size,
        rank=np.asarray([[pair[0] for pair in row] for row in pairs]),
        flips=np.asarray([[pair[1] for pair in row] for row in pairs]),
        nonzero=np.asarray([float((np.abs(value) > 1e-12).mean()) for value in values]),
    )


def batches(source: PathLike) -> Iterator[Batch]:
    """Stored rollouts with their turn tables: each step of a store, and the graphs of a step in files, where they must
    follow one another.

    Raises:
        GraphError: for a source that is empty, damaged or written by a newer version.
    """
    for step, columns in _columns(place(source)):
        yield Batch(step, columns, *table_of(columns))


def _columns(source: Path) -> Iterator[tuple[int, Columns]]:
    try:
        parts = graph_parts(source)
        for stored, members in groupby(parts, key=is_step):
            if stored:
                yield from map(read_columns, members)
            else:
                graphs = (graph for part in members for graph in read_graphs(part))
                yield from ((step, encode(list(each))) for step, each in groupby(graphs, key=attrgetter("step")))
    except FileError as error:
        raise GraphError(str(error)) from error


def parse_settings(pairs: Sequence[str]) -> dict[str, Any]:
    """Read `key=value` pairs of the command line. A value is read as JSON; one that is not JSON is a string.

    Raises:
        RecipeError: for a pair without `=`.
    """
    settings: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or not key:
            raise RecipeError(f"{pair!r} sets nothing: write `--set option=value`.")
        try:
            settings[key] = json.loads(text)
        except (ValueError, RecursionError):
            settings[key] = text
    return settings


def _spec(estimator: EstimatorSpec | str) -> EstimatorSpec:
    if isinstance(estimator, EstimatorSpec):
        return estimator
    from verl_hier.testing.builtin import estimator as builtin

    return builtin(estimator)


def _require_columns(spec: EstimatorSpec, table: TurnTable) -> None:
    """Refuse an estimator that reads what the file does not hold; no line of a recipe can add it any more."""
    missing = [column for column in spec.requires if column not in table.columns()]
    if not missing:
        return
    known = COLUMNS.get(missing[0])
    why = f"it credits only rollouts of a {known.provider if known else 'worker'} that lists it in `provides`"
    if known is not None and known.provider == "critic":
        why = (
            "a critic's values are not stored with rollouts, so it credits only during a run with `critic.enable: true`"
        )
    raise CreditError(
        f"estimator {spec.name!r} needs the column {missing[0]!r}{f' ({known.meaning})' if known else ''}, which these "
        f"rollouts do not hold; {why}."
    )


def _records(batch: Batch, found: Credit) -> pa.Table:
    """A row a turn: what it is, and its credit."""
    sizes = [len(part) for part in batch.turn_of]
    turn = np.concatenate(batch.turn_of) if sizes else np.zeros(0, np.int64)
    node = np.concatenate([np.arange(size) for size in sizes]) if sizes else turn
    kept = turn >= 0
    turns, nodes = turn[kept], batch.columns.nodes.filter(pa.array(kept))
    weight = np.ones(len(batch.table)) if found.weight is None else np.asarray(found.weight, np.float64)
    columns = {
        "step": np.full(len(turns), batch.step),
        "uid": batch.columns.tasks["uid"].take(pa.array(np.repeat(np.arange(len(sizes)), sizes)[kept])),
        "node": node[kept],
        **{name: nodes[name] for name in ("episode", "agent", "role", "level", "turn", "trained", "reward")},
        "return": batch.table["return"][turns] if len(turns) else np.zeros(0),
        "credit": turn_credit(batch.table, found)[turns],
        "weight": weight[turns],
    }
    return pa.table(columns)


def _rank_correlation(left: Floats, right: Floats) -> float:
    """Spearman correlation with mean ranks for ties; NaN when one side is constant."""
    a, b = _ranks(left), _ranks(right)
    a, b = a - a.mean(), b - b.mean()
    size = float(np.sqrt((a @ a) * (b @ b)))
    return float(a @ b) / size if size > 0 else float("nan")


def _ranks(values: Floats) -> Floats:
    """Mean rank of every value; values that agree to twelve digits are ties."""
    scale = max(float(np.abs(values).max(initial=0.0)), 1e-300)
    _, inverse, count = np.unique(np.round(values / scale, 12), return_inverse=True, return_counts=True)
    upper = np.cumsum(count)
    ranks: Floats = (upper - (count - 1) / 2.0)[inverse]
    return ranks
