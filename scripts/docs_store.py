"""The columns of stored rollouts, for the documentation."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from docs_markdown import table

from verl_hier.graph.columnar.layout import CREDIT, STORED


def store_columns() -> Iterator[str]:
    """The columns of a store's files by their types."""
    rows = [("in", "type", "columns")]
    for kind, schema in {**STORED, "credit": CREDIT}.items():
        types: dict[str, list[str]] = {}
        for field in schema:
            types.setdefault(_short(field.type), []).append(f"`{field.name}`")
        rows += [(kind, found, ", ".join(names)) for found, names in types.items()]
    yield from table(*rows)


def _short(kind: pa.DataType) -> str:
    """The name of a type without the names of what a list holds."""
    if pa.types.is_list(kind):
        return f"list of {_short(kind.value_type)}"
    if pa.types.is_struct(kind):
        return f"({', '.join(f'{field.name} {_short(field.type)}' for field in kind)})"
    return str(kind)
