"""Heads of a critic: values reach the column of their turn, targets the token in front of which they were read."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.conformance.builtin_parts import value_head
from tests.fixtures import rollout_graphs
from tests.unit.training.test_step import run
from verl_hier.credit import Credit
from verl_hier.errors import CreditError
from verl_hier.graph import RolloutGraph
from verl_hier.host.specs import EstimatorSpec, NoOptions, ValueHeadSpec


def counted(row: Any) -> np.ndarray:
    """The place of each response token as its value."""
    return np.arange(len(row.response), dtype=np.float64)


def worded() -> RolloutGraph:
    """Two episodes whose turns are four tokens each: a switch, a subgoal and two of an action."""
    graph = rollout_graphs.flat()
    for node in graph.nodes:
        node.action, node.logprobs = [7, 7, 7, 7], [-1.0] * 4
        node.entropy, node.top, node.prompt_tokens = [], [], 0
        node.masks = {"switch": [[0, 1]], "subgoal": [[1, 2]], "action": [[2, 4]]}
    return graph


def starts_of(row: Any) -> list[int]:
    """The first token of each turn in a row."""
    turns = row.turn_index
    return [i for i, turn in enumerate(turns) if turn >= 0 and (i == 0 or turns[i - 1] != turn)]


def learner(targets: Any) -> tuple[EstimatorSpec, dict[str, Any]]:
    """An estimator that gives heads `targets(table)` to learn, and what it saw."""
    seen: dict[str, Any] = {}

    def estimate(table: Any, options: Any) -> Credit:
        seen["table"] = table
        return Credit(np.zeros(len(table)), targets=targets(table))

    return EstimatorSpec("learner", estimate, NoOptions, needs_groups=False), seen


@pytest.mark.parametrize(("name", "offset"), [("first", 0), ("low", 2), ("high", 0), ("last", 3)])
def test_a_head_reads_and_learns_at_its_own_token(name: str, offset: int) -> None:
    spec, seen = learner(lambda table: {name: table["turn"] + 10.0})
    _, rows, fields, metrics = run(
        worded(), spec, [None, 1, 0], heads=[value_head(name)], **{f"values_{name}": counted}
    )
    found = seen["table"]
    place = 0
    for row, mask, returns in zip(
        [rows[1], rows[0]], fields[f"value_mask_{name}"][1:], fields[f"returns_{name}"][1:], strict=True
    ):
        at = [start + offset for start in starts_of(row) if row.mask[start]]
        assert np.flatnonzero(mask).tolist() == at
        assert returns[at].tolist() == [10.0 + number for number in range(len(at))]
        place += len(at)
    read = sorted(place for row in rows for place in (start + offset for start in starts_of(row)))
    assert sorted(found[f"value_{name}"].tolist()) == read
    assert fields[f"value_mask_{name}"][0].tolist() == [0]
    tokens = sum(len(row.response) for row in rows)
    assert metrics[f"hier/critic/{name}/trained_share"] == pytest.approx(place / tokens)


def test_nothing_is_learned_where_the_target_is_not_a_number() -> None:
    spec, _ = learner(lambda table: {"first": np.where(table["turn"] == 0, 1.0, np.nan)})
    _, rows, fields, metrics = run(worded(), spec, heads=[value_head("first")], values_first=counted)
    assert [int(mask.sum()) for mask in fields["value_mask_first"]] == [1] * len(rows)
    assert "hier/critic/first/explained_variance" not in metrics


def test_a_head_of_every_token_is_a_token_column() -> None:
    spec, seen = learner(lambda table: {"token": table["tokens.value_token"] * 2})
    _, rows, fields, metrics = run(worded(), spec, heads=[value_head("token")], values_token=counted)
    assert seen["table"]["tokens.value_token"].size == sum(sum(t >= 0 for t in row.turn_index) for row in rows)
    for row, returns, mask in zip(rows, fields["returns_token"], fields["value_mask_token"], strict=True):
        np.testing.assert_array_equal(returns, 2 * counted(row) * mask)
    assert 0 < metrics["hier/critic/token/explained_variance"] < 1


def test_wrong_heads_are_refused_in_a_sentence() -> None:
    spec, _ = learner(lambda table: {})
    with pytest.raises(CreditError, match="gives the head 'first' nothing to learn; remove it there"):
        run(worded(), spec, heads=[value_head("first")], values_first=counted)
    spec, _ = learner(lambda table: {"first": np.zeros(1)})
    with pytest.raises(CreditError, match=r"targets of the value head 'first' have the shape \(1,\)"):
        run(worded(), spec, heads=[value_head("first")], values_first=counted)
    stray = ValueHeadSpec("stray", lambda table: np.zeros(len(table), np.int64))
    spec, _ = learner(lambda table: {"stray": np.zeros(len(table))})
    with pytest.raises(CreditError, match="value head 'stray' reads turn 1 at a token of another turn"):
        run(worded(), spec, heads=[stray], values_stray=counted)
    short = ValueHeadSpec("short", lambda table: np.zeros(1, np.int64))
    with pytest.raises(CreditError, match="value head 'short' must name one place for each"):
        run(worded(), spec, heads=[short], values_short=counted)
