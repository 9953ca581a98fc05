"""Reading files that a stranger may have made: regular files only, bounded in size and depth, refused in one sentence.

What is read stays below a fixed multiple of what lies on the disk, so that a small file cannot fill the memory:
compressed text and Parquet are read in pieces, and reading ends where they turn out to be larger than that.
"""

from __future__ import annotations

import gzip
import json
import os
import stat
import subprocess
import sys
import zlib
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from verl_hier.errors import FileError, first_line, refusal
from verl_hier.graph.places import RemotePath

MIB = 2**20
LONGEST_TEXT = 256 * MIB
"""Bytes of a file that is read as a whole, and of one line of a file that is read by lines."""
SMALL = 64 * MIB
GROWTH = 100
"""A compressed file may grow to `SMALL` bytes, or to so many times its size. Rollout graphs grow about tenfold."""
DEEPEST = 100
"""How many lists and mappings may be nested in one another."""
ROWS_AT_ONCE = 64
ROWS_OF_COLUMNS = 256
"""As `ROWS_AT_ONCE`, where no row holds a whole rollout graph."""
_LARGEST = 2**63


def require_regular(path: Path) -> int:
    """The size of a regular file in bytes.

    Raises:
        FileError: when there is no file, or it is a pipe, a device, a socket or a folder.
    """
    try:
        found = path.stat()
    except (OSError, ValueError) as error:
        if isinstance(path, RemotePath) and not isinstance(error, FileNotFoundError):
            raise FileError(f"{path} cannot be read: {first_line(error)}.") from error
        raise FileError(f"there is no file {path}.") from error
    if not stat.S_ISREG(found.st_mode):
        raise FileError(f"{path} is not a regular file.")
    return found.st_size


def folder_entries(folder: Path) -> list[Path]:
    """What lies in a folder, in the order of the names.

    Raises:
        FileError: when the folder cannot be read.
    """
    try:
        return sorted(folder.iterdir())
    except OSError as error:
        raise FileError(f"{folder} cannot be read: {refusal(error)}.") from error


def read_text(path: Path, most: int = LONGEST_TEXT) -> str:
    """The text of a file in UTF-8.

    Args:
        path: a regular file.
        most: its largest size in bytes.

    Raises:
        FileError: when it cannot be read as such.
    """
    size = require_regular(path)
    if size > most:
        raise FileError(f"{path} is too large: it has {size} bytes, and at most {most} are read.")
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise FileError(f"{path} cannot be read: {first_line(error)}.") from error


def parse_json(text: str, where: str, *, repair: bool = False) -> Any:
    """The value of a JSON text. Its integers fit 64 bits; other numbers may be infinite or NaN, as Python reads them.

    Args:
        text: the text.
        where: what holds it, for the sentence of an error.
        repair: replace halves of surrogate pairs, which JSON can escape and no file can hold, instead of refusing them.

    Raises:
        FileError: for a text that is not JSON, or is nested more than `DEEPEST` levels.
    """
    try:
        value = json.loads(text)
    except RecursionError as error:
        raise FileError(f"{where} is nested too deeply: at most {DEEPEST} levels are read.") from error
    except ValueError as error:  # an integer with thousands of digits is none of json's own errors
        raise FileError(f"{where} is not JSON: {first_line(error)}.") from error
    try:
        _require_modest(value, where, escaped="\\ud" in text or "\\uD" in text)
    except UnicodeEncodeError as error:
        if not repair:
            raise FileError(f"{where} holds one half of a surrogate pair, which is no character.") from error
        value = json.loads(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))
    return value


def read_json(path: Path, most: int = LONGEST_TEXT, *, repair: bool = False) -> Any:
    """The value of a JSON file; see `read_text` and `parse_json`."""
    return parse_json(read_text(path, most), str(path), repair=repair)


def _require_modest(value: Any, where: str, escaped: bool) -> None:
    """Refuse what is nested too deeply, and integers beyond 64 bits; level by level, because recursion has an end.

    Args:
        value: of a JSON text.
        where: what holds it.
        escaped: whether the text escapes surrogates, so that its strings have to be looked at too.

    Raises:
        FileError: naming `where`.
        UnicodeEncodeError: for a string with half a surrogate pair.
    """
    level: list[Any] = [value]
    for _ in range(DEEPEST + 1):
        deeper: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                deeper += item.values()
                if escaped:
                    deeper += item
            elif isinstance(item, list):
                # Long lists hold numbers alone, and these passes need no step of the interpreter for each.
                kinds = {*map(type, item)}
                if kinds == {int}:
                    deeper += (min(item), max(item))
                elif kinds != {float}:
                    deeper += item
            elif type(item) is int and not -_LARGEST <= item < _LARGEST:
                raise FileError(f"{where} holds an integer that does not fit 64 bits.")
            elif escaped and isinstance(item, str):
                item.encode()
        if not deeper:
            return
        level = deeper
    raise FileError(f"{where} is nested too deeply: at most {DEEPEST} levels are read.")


def text_lines(path: Path) -> Iterator[tuple[int, str]]:
    """The lines of a text file that are not blank, each with its number from 1; a name that ends in `.gz` is unpacked.

    Raises:
        FileError: when the file cannot be read, is damaged, or has a line that is too long.
    """
    size = require_regular(path)
    left = max(SMALL, GROWTH * size) if path.suffix == ".gz" else size + LONGEST_TEXT
    number = 0
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
            while line := file.readline(min(left, LONGEST_TEXT) + 1):
                number, left = number + 1, left - len(line)
                if left < 0:
                    raise FileError(f"{path} is too large: unpacked, it has more than {GROWTH} times its size.")
                if len(line) > LONGEST_TEXT:
                    raise FileError(f"{path} is too large: line {number} has more than {LONGEST_TEXT} bytes.")
                if not line.isspace():
                    yield number, line.decode("utf-8")
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        raise FileError(f"{path} cannot be read: {first_line(error)}.") from error


def _opened(path: Path) -> Any:
    """What pyarrow reads a file from: it opens a local one itself."""
    return path.open("rb") if isinstance(path, RemotePath) else path


def parquet_columns(path: Path) -> list[str]:
    """The names of the columns of a Parquet file; see `parquet_types`."""
    return list(parquet_types(path))


def parquet_types(path: Path) -> dict[str, str]:
    """The columns of a Parquet file: name to Arrow's name of the type, such as `list<element: int64>`.

    Raises:
        FileError: when it is none.
    """
    import pyarrow.parquet as parquet

    require_regular(path)
    try:
        return {column.name: str(column.type) for column in parquet.read_schema(_opened(path))}
    except Exception as error:  # pyarrow raises several unrelated types for damaged files
        raise FileError(f"{path} cannot be read as Parquet: {first_line(error)}.") from error


def parquet_metadata(path: Path) -> Any:
    """What the footer of a Parquet file says of it, a `pyarrow.parquet.FileMetaData`; of its columns it is not to be
    asked, because pyarrow ends the process where their metadata is damaged.

    Raises:
        FileError: when it is none.
    """
    import pyarrow.parquet as parquet

    require_regular(path)
    try:
        return parquet.read_metadata(_opened(path))
    except Exception as error:  # pyarrow raises several unrelated types for damaged files
        raise FileError(f"{path} cannot be read as Parquet: {first_line(error)}.") from error


def parquet_rows(
    path: Path, columns: Sequence[str] | None = None, places: Sequence[int] | None = None
) -> Iterator[dict[str, Any]]:
    """The rows of a Parquet file. Pages that have a checksum are verified.

    Args:
        path: a regular file.
        columns: the columns to read; None for all.
        places: numbers of the rows to read from 0, in order; None for all. Only row groups that hold them are read.

    Raises:
        FileError: when it cannot be read, is damaged, or unpacks to more than the bounds of this module.
    """
    import pyarrow.parquet as parquet

    size = require_regular(path)
    allowed = max(SMALL, GROWTH * size)
    too_large = f"{path} is too large: unpacked, it has more than {GROWTH} times its size."
    try:
        with parquet.ParquetFile(_opened(path), page_checksum_verification=True) as file:
            if _nested(file, columns):
                _require_sound_columns(path, file.metadata.serialized_size)
            if _values(file, columns, range(file.metadata.num_row_groups)) * 4 > allowed:
                raise FileError(too_large)
            groups, chosen = _choose(file.metadata, places)
            names = None if columns is None else list(columns)
            read = 0
            for batch in file.iter_batches(ROWS_AT_ONCE, row_groups=groups, columns=names):
                allowed -= batch.nbytes
                if allowed < 0:
                    raise FileError(too_large)
                records = batch.to_pylist()
                yield from (record for row, record in enumerate(records, read) if chosen is None or row in chosen)
                read += len(records)
            if places is None and read != file.metadata.num_rows:
                raise FileError(f"{path} is damaged: it has {read} rows and says that it has {file.metadata.num_rows}.")
    except FileError:
        raise
    except Exception as error:  # pyarrow raises several unrelated types for damaged files
        raise FileError(f"{path} cannot be read as Parquet: {first_line(error)}.") from error


def parquet_table(path: Path, schema: Any, groups: Sequence[int] | None = None) -> Any:
    """Columns of a Parquet file as a `pyarrow.Table`. Pages that have a checksum are verified.

    Args:
        path: a regular file. Where the schema has lists, the caller has verified a checksum of its footer: pyarrow ends
            the process when it is asked how many values a column with damaged metadata has.
        schema: a `pyarrow.Schema` of the columns to read.
        groups: numbers of the row groups to read; None for all.

    Raises:
        FileError: when it cannot be read, is damaged, lacks a column or has it in another type, or unpacks to more than
            the bounds of this module.
    """
    import pyarrow
    import pyarrow.parquet as parquet

    allowed = max(SMALL, GROWTH * require_regular(path))
    too_large = f"{path} is too large: unpacked, it has more than {GROWTH} times its size."
    try:
        with parquet.ParquetFile(_opened(path), page_checksum_verification=True) as file:
            stored = file.schema_arrow
            for field in schema:
                place = stored.get_field_index(field.name)
                if place < 0 or stored.field(place).type != field.type:
                    raise FileError(f"{path} has no column {field.name!r} of type {field.type}.")
            if groups is None:
                groups = range(file.metadata.num_row_groups)
            if _values(file, schema.names, groups) * 4 > allowed:
                raise FileError(too_large)
            batches = []
            pieces = file.iter_batches(ROWS_OF_COLUMNS, list(groups), schema.names, use_threads=False)
            for batch in pieces:
                allowed -= batch.nbytes
                if allowed < 0:
                    raise FileError(too_large)
                columns = [batch.column(name) for name in schema.names]
                batches.append(pyarrow.RecordBatch.from_arrays(columns, schema=schema))
            expected = sum(file.metadata.row_group(number).num_rows for number in groups)
            if sum(map(len, batches)) != expected:
                raise FileError(f"{path} is damaged: it does not have the {expected} rows that it says it has.")
        return pyarrow.Table.from_batches(batches, schema)
    except FileError:
        raise
    except Exception as error:  # pyarrow raises several unrelated types for damaged files
        raise FileError(f"{path} cannot be read as Parquet: {first_line(error)}.") from error


def _choose(metadata: Any, places: Sequence[int] | None) -> tuple[list[int], set[int] | None]:
    """The row groups that hold some rows, and the numbers of the rows among those of these groups; None for all."""
    if places is None:
        return list(range(metadata.num_row_groups)), None
    groups: list[int] = []
    chosen: set[int] = set()
    left = deque(places)
    first, skipped = 0, 0
    for group in range(metadata.num_row_groups):
        size = metadata.row_group(group).num_rows
        before = len(left)
        while left and left[0] < first + size:
            chosen.add(left.popleft() - skipped)
        if len(left) < before:
            groups.append(group)
        else:
            skipped += size
        first += size
    return groups, chosen


def _nested(file: Any, columns: Sequence[str] | None) -> bool:
    """Whether a column has lists, structures or mappings."""
    return any(field.type.num_fields for field in file.schema_arrow if columns is None or field.name in columns)


def _values(file: Any, columns: Sequence[str] | None, groups: Sequence[int]) -> int:
    """The number of values in the longest column; a few bytes can stand for a thousand million equal ones.

    Columns that are not nested have a value a row, and are read a few rows at a time. Their own metadata is not looked
    at: where it is damaged, pyarrow ends the process when it is asked.
    """
    metadata = file.metadata
    chosen = [metadata.row_group(number) for number in groups]
    if not _nested(file, columns):
        return sum(group.num_rows for group in chosen)
    every = range(metadata.num_columns)
    return max((sum(group.column(column).num_values for group in chosen) for column in every), default=0)


def _require_sound_columns(path: Path, footer: int) -> None:
    """Ask for the metadata of every column in a process of its own: where they are damaged, pyarrow ends it.

    Args:
        path: a Parquet file.
        footer: length of its footer in bytes.

    Raises:
        FileError: for damaged metadata.
    """
    with path.open("rb") as file:
        file.seek(-footer - 8, os.SEEK_END)  # its length and "PAR1" are behind it
        asked = subprocess.run([sys.executable, "-c", _ASK], input=b"PAR1" + file.read(), capture_output=True)
    if asked.returncode:
        raise FileError(f"{path} cannot be read as Parquet: the metadata of its columns are damaged.")


_ASK = """
import io, sys
import pyarrow.parquet as parquet
footer = parquet.read_metadata(io.BytesIO(sys.stdin.buffer.read()))
for group in map(footer.row_group, range(footer.num_row_groups)):
    [group.column(number).num_values for number in range(footer.num_columns)]
"""
