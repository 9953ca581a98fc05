"""Files that appear whole or not at all."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from verl_hier.graph.places import RemotePath


@contextlib.contextmanager
def atomic_write(target: Path) -> Iterator[Path]:
    """A path beside `target` to write to: it becomes `target` when the block ends, and is gone when the block raises.

    On a file system that is not local, it is a local file that is sent to `target` when the block ends.

    Raises:
        OSError: when the disk refuses; it names `target`.
    """
    if isinstance(target, RemotePath):
        with target.written() as beside:
            yield beside
        return
    beside = target.with_name(f"{target.name}.{os.getpid()}.part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        yield beside
        os.replace(beside, target)
    except OSError as error:
        if error.errno is None or error.filename not in (None, str(beside)):
            raise
        raise OSError(error.errno, os.strerror(error.errno), str(target)) from error
    finally:
        with contextlib.suppress(OSError):
            beside.unlink()


def write_records(target: Path, records: Iterable[dict[str, Any]]) -> int:
    """Write records as Parquet or, with any other suffix, as lines of JSON; returns how many.

    Raises:
        OSError: when the disk refuses.
    """
    with atomic_write(target) as beside:
        if target.suffix == ".parquet":
            import pyarrow as pa
            import pyarrow.parquet as pq

            rows = list(records)
            pq.write_table(pa.Table.from_pylist(rows), beside, compression="zstd")
            return len(rows)
        count = 0
        with open(beside, "w", encoding="utf-8") as file:
            for record in records:
                file.write(json.dumps(record, ensure_ascii=False) + "\n")
                count += 1
        return count
