"""The JSON schema of the store: it is in the package, real shards fit it, and what is changed in them does not."""

import json
from importlib import resources

import jsonschema
import pyarrow.parquet as pq
import pytest

from tests.fixtures import rollout_graphs
from tests.fixtures.random_graphs import random_graph
from tests.unit.graph.test_columnar import files_can_hold
from verl_hier.graph import write_step
from verl_hier.graph.columnar.layout import CREDIT, NULLABLE, STORED
from verl_hier.graph.columnar.schema import columns_schema

SCHEMA = json.loads(resources.files("verl_hier.graph.columnar").joinpath("columns.json").read_text("utf-8"))
KINDS = {**STORED, "credit": CREDIT}


def validator(kind):
    return jsonschema.Draft202012Validator({"$defs": SCHEMA["$defs"], "$ref": f"#/$defs/{kind}"})


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """The rows of a real store, by kind of file."""
    graphs = [*rollout_graphs.golden(), rollout_graphs.forked(), rollout_graphs.windowed()]
    for seed in range(12):
        graphs.append(random_graph(seed))
        files_can_hold(graphs[-1])
    for number, graph in enumerate(graphs):
        graph.task["uid"] = f"task {number}"
        graph.credit = [float(node.turn) for node in graph.nodes]
    store = tmp_path_factory.mktemp("store")
    write_step(store, 3, graphs)
    return {kind: pq.read_table(next(store.glob(f"step_*/{kind}*.parquet"))).to_pylist() for kind in KINDS}


def test_it_is_a_schema_of_these_columns():
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    assert columns_schema() == SCHEMA, "python scripts/docs.py writes it"
    assert {kind: SCHEMA["$defs"][kind]["required"] for kind in KINDS} == {k: v.names for k, v in KINDS.items()}


@pytest.mark.parametrize("kind", KINDS)
def test_real_rows_fit(rows, kind):
    assert rows[kind]
    for row in rows[kind]:
        validator(kind).validate(row)
        jsonschema.Draft202012Validator(SCHEMA).validate(row)


@pytest.mark.parametrize("kind", KINDS)
def test_every_column_counts(rows, kind):
    row = rows[kind][0]
    for name in row:
        wrong = [{key: value for key, value in row.items() if key != name}, {**row, name: {"another": "type"}}]
        wrong += [] if name in NULLABLE else [{**row, name: None}]
        assert not any(map(validator(kind).is_valid, wrong)), name
    assert not validator(kind).is_valid({**row, "unknown": 1})
