"""What rollout workers and trainers agree on in TransferQueue: partitions of ours, and the keys of rows."""

from __future__ import annotations

from typing import Any

import transfer_queue as tq

from verl_hier.errors import RolloutError

FAULTS = "hier_faults"
"""Partition whose tags are the fatal errors of tasks."""

EXAMPLES = "hier_examples"
"""Partition whose tags are what `verl_hier.compat.examples` shows of the tasks of a validation."""

LIGHT = "hier_light"
"""Partition of the light parts of rollouts, each under the uid of its task; see `verl_hier.graph.columnar.light`. Tags
say whether it is of a validation (`validate`), how many `rows` it has, the number of its task (`index`), and, where it
is trained, what its rows share (`sharing`)."""

TRAIN = "train"
"""verl's partition of what is trained: tasks under their uid, and rows."""

SECONDS = "seconds"
"""Tag of a task that has ended: wall seconds since its launch, pauses of the servers included."""


def uid_of_row(key: str) -> str:
    """The uid of the task of a row, with which verl lets the row's key begin."""
    return key.split("_")[0]


def tags_of(partition: str) -> dict[str, Any]:
    """The tags of a partition of TransferQueue by key; none when nobody has put anything there."""
    found: dict[str, Any] = (tq.kv_list(partition) or {}).get(partition, {})
    return found


def arrived(partition: str) -> dict[str, Any]:
    """The tags of the records of ours that are whole: TransferQueue lists a key from the beginning of its put, without
    a tag until its data are there, and rollouts go on while an asynchronous trainer looks."""
    return {key: tag for key, tag in tags_of(partition).items() if tag}


def raise_faults() -> None:
    """Stop on a fatal error of a rollout worker.

    Raises:
        RolloutError: with the first of them.
    """
    tags = arrived(FAULTS)
    if tags:
        tq.kv_clear(keys=list(tags), partition_id=FAULTS)
        errors = [tag["error"] for tag in tags.values()]
        raise RolloutError(f"{len(errors)} task(s) could not be rolled out. The first: {errors[0]}")
