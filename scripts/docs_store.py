"""The columns of stored rollouts, for the documentation and as a JSON schema in the package."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from docs_markdown import table

from verl_hier.graph.columnar import schema

COLUMNS_FILE = Path(schema.__file__).with_name("columns.json")


def store_columns() -> Iterator[str]:
    """A table of the columns for each kind of file."""
    for kind, found in schema.columns_schema()["$defs"].items():
        rows = [("column", "type", "what it is")]
        for name, column in found["properties"].items():
            rows.append((f"`{name}`", column["arrow"], column["description"]))
        yield from (f"`{kind}`", "")
        yield from table(*rows)
        yield ""


def columns_json() -> str:
    """The text that `COLUMNS_FILE` should have."""
    return f"{json.dumps(schema.columns_schema(), indent=2)}\n"
