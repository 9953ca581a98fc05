"""Lines of other formats on disk: JSON objects in text, or records of a Parquet file."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verl_hier.errors import FileError, GraphError, refusal
from verl_hier.graph.atomic_write import write_records
from verl_hier.graph.bounded_reading import folder_entries, parquet_rows, parse_json, text_lines


@dataclass(frozen=True)
class Line:
    """One record of a file.

    Attributes:
        where: the file and the number of the line, for errors.
        name: the same in short, to call a task that has no name.
        data: its keys and values.
    """

    where: str
    name: str
    data: dict[str, Any]

    def get(self, key: str, kinds: type | tuple[type, ...], what: str, default: Any = None) -> Any:
        """A value of the line; `default` where it has none.

        Raises:
            GraphError: for a value that is not `what`.
        """
        value = self.data.get(key)
        if value is None:
            return default
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in _tuple(kinds)):
            raise GraphError(f"{self.where}: `{key}` has to be {what}.")
        if isinstance(value, float) and not math.isfinite(value):
            raise GraphError(f"{self.where}: `{key}` has to be finite.")
        return value

    def natural(self, key: str, default: int | None = None) -> Any:
        """A whole number of the line that is not negative; `default` where it has none.

        Raises:
            GraphError: for another value.
        """
        value = self.get(key, int, "an integer", default)
        if value is not None and value < 0:
            raise GraphError(f"{self.where}: `{key}` has to be at least 0.")
        return value

    def need(self, key: str, kinds: type | tuple[type, ...], what: str, format: str) -> Any:
        """A value that the line has to have.

        Raises:
            GraphError: also when it is missing; says which `format` needs it.
        """
        if self.data.get(key) is None:
            raise GraphError(f"{self.where} lacks `{key}`, which every line of {format} has.")
        return self.get(key, kinds, what)


def read_lines(source: Path) -> Iterator[Line]:
    """Records of a file, or of verl's folder of `STEP.jsonl` files in the order of the steps.

    Raises:
        GraphError: when there is nothing to read, or a line is no JSON object.
    """
    try:
        if source.is_dir():
            found = [entry for entry in folder_entries(source) if entry.suffix == ".jsonl"]
            files = sorted(found, key=lambda file: (len(file.stem), file.stem))
            if not files:
                raise GraphError(f"{source} holds no .jsonl file; name the folder of `trainer.rollout_data_dir`.")
        else:
            files = [source]
        for file in files:
            yield from _lines(file)
    except FileError as error:
        raise GraphError(f"{str(error).removesuffix('.')}; name the file to read.") from error


def _lines(source: Path) -> Iterator[Line]:
    number = 0
    for number, data in _records(source):
        where = f"{source}, line {number}"
        if isinstance(data, str):
            data = parse_json(data, where)
        if not isinstance(data, dict):
            raise GraphError(f"{where} is not a JSON object.")
        yield Line(where, f"{source.stem}:{number}", data)
    if not number:
        raise GraphError(f"{source} is empty: it holds no line to import.")


def _records(source: Path) -> Iterator[tuple[int, Any]]:
    """Lines of text, or records of a Parquet file, with their numbers."""
    return enumerate(parquet_rows(source), start=1) if source.suffix == ".parquet" else text_lines(source)


def write_lines(target: Path, suffixes: tuple[str, ...], lines: Iterable[dict[str, Any]]) -> int:
    """Write all lines or none and return how many: the file appears when it is complete.

    Raises:
        GraphError: for a suffix that is not among `suffixes`, or when the disk refuses.
    """
    if target.suffix not in suffixes:
        raise GraphError(f"{target} has no known suffix: use {' or '.join(suffixes)}.")
    try:
        return write_records(target, lines)
    except OSError as error:
        raise GraphError(f"cannot write {target}: {refusal(error)}.") from error


def _tuple(kinds: type | tuple[type, ...]) -> tuple[type, ...]:
    return kinds if isinstance(kinds, tuple) else (kinds,)
