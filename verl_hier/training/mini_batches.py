"""How the rows of a step are divided among optimiser steps and data-parallel ranks."""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Sequence
from itertools import pairwise

from verl_hier.errors import RecipeError
from verl_hier.training.options import UpdateOptions

Parts = list[list[int]]
Balance = Callable[[list[int], int], list[list[int]]]


def require_rows(update: UpdateOptions, ranks: int) -> None:
    """Refuse mini-batches of fewer rows than there are data-parallel ranks.

    Raises:
        RecipeError: when some ranks would have none.
    """
    rows = update.mini_batch.rows
    if rows is not None and rows < ranks:
        raise RecipeError(
            f"hier.update.mini_batch.rows: {rows} row(s) cannot be divided among {ranks} data-parallel ranks; name at "
            f"least {ranks}."
        )


def divide(update: UpdateOptions, tasks: Sequence[str], prompts: int) -> Parts:
    """The rows of each optimiser step, all of one epoch.

    Args:
        update: what a mini-batch is measured in. `mini_batch` has to name one of its three sizes.
        tasks: task of each row.
        prompts: tasks that the step was asked for, also those that left no row.

    Returns:
        row numbers of each mini-batch: consecutive rows, at least one each, whose numbers differ by one at most, or
        whole tasks where `keep_tasks_together` is set.
    """
    size = update.mini_batch
    if update.keep_tasks_together:
        return _whole_tasks(update, tasks, prompts)
    if size.rows is not None:
        number = -(-len(tasks) // size.rows)
    elif size.prompts is not None:
        number = prompts // size.prompts
    else:
        number = size.steps or 1
    return even_parts(len(tasks), number)


def even_parts(rows: int, number: int) -> Parts:
    """Consecutive rows in `number` parts, fewer if there are fewer rows; the longer parts come first."""
    number = max(1, min(number, rows))
    size, longer = divmod(rows, number)
    starts = [part * size + min(part, longer) for part in range(number + 1)]
    return [list(range(start, end)) for start, end in pairwise(starts)]


def _whole_tasks(update: UpdateOptions, tasks: Sequence[str], prompts: int) -> Parts:
    rows_of: dict[str, list[int]] = {}
    for row, task in enumerate(tasks):
        rows_of.setdefault(task, []).append(row)
    groups = list(rows_of.values())
    size = update.mini_batch
    if size.rows is None:
        number = size.steps or prompts // (size.prompts or prompts)
        return [[row for i in part for row in groups[i]] for part in even_parts(len(groups), number)]
    parts: Parts = [[]]
    for group in groups:
        if parts[-1] and len(parts[-1]) + len(group) > size.rows:
            parts.append([])
        parts[-1] += group
    return parts


def left_over(rows: Sequence[int], ranks: int, chance: random.Random) -> list[int]:
    """Some of these rows, drawn at random, without which their number is a multiple of the ranks; none of fewer rows
    than ranks."""
    return sorted(chance.sample(list(rows), len(rows) % ranks)) if len(rows) >= ranks else []


def padded_size(parts: Parts, ranks: int) -> int:
    """Rows of the batch when every part is filled up to the longest one, and that to a multiple of the ranks."""
    longest = max(len(part) for part in parts)
    return len(parts) * -(-longest // ranks) * ranks


def arrange(parts: Parts, padding: Sequence[int], ranks: int, balance: Balance) -> list[int]:
    """The order in which each rank gets its share of the first mini-batch, of the second one, and so on.

    Args:
        parts: rows of each mini-batch.
        padding: further rows, which are not trained; with those of `parts` they are `padded_size` many.
        ranks: data-parallel ranks; each of them gets a consecutive, equal part of the result.
        balance: divides rows among so many ranks, equally many for each.

    Returns:
        every row once.
    """
    spare = list(padding)
    size = (sum(map(len, parts)) + len(spare)) // len(parts)
    shares = []
    for part in parts:
        missing = size - len(part)
        filled, spare = [*part, *spare[:missing]], spare[missing:]
        shares.append(balance(filled, ranks))
    return [row for rank in range(ranks) for share in shares for row in share[rank]]


def whole_groups(groups: Sequence[Hashable], work: Sequence[float], ranks: int) -> Parts:
    """Divide rows equally among ranks, and keep those of a group on one rank where they fit.

    Args:
        groups: of each row; None is a row without a group, such as padding.
        work: what each row costs.
        ranks: their number divides that of the rows.

    Returns:
        row numbers for each rank, those of a group next to each other.
    """
    rows_of: dict[Hashable, list[int]] = {}
    for row, group in enumerate(groups):
        rows_of.setdefault(("row", row) if group is None else ("group", group), []).append(row)
    room = [len(groups) // ranks] * ranks
    load = [0.0] * ranks
    shares: Parts = [[] for _ in range(ranks)]

    def put(rows: list[int], rank: int) -> None:
        shares[rank] += rows
        room[rank] -= len(rows)
        load[rank] += sum(work[row] for row in rows)

    # Large groups first, so that single rows fill what is left.
    for rows in sorted(rows_of.values(), key=lambda rows: (-len(rows), -sum(work[row] for row in rows))):
        fitting = [rank for rank in range(ranks) if room[rank] >= len(rows)]
        if fitting:
            put(rows, min(fitting, key=lambda rank: load[rank]))
            continue
        while rows:
            rank = max(range(ranks), key=lambda rank: room[rank])
            piece, rows = rows[: room[rank]], rows[room[rank] :]
            put(piece, rank)
    return shares
