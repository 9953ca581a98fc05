"""Two ranks, which have different trees and equally many micro-batches, learn what one rank learns."""

from __future__ import annotations

import contextlib
import multiprocessing
from pathlib import Path
from queue import Empty
from typing import Any

import numpy as np
import pytest
from verl.utils import tensordict_utils as tu

from tests.fixtures.byte_model import write_byte_model
from tests.fixtures.engines_alone import batch_of, build_engine, gradients, loss_of, process_group
from tests.fixtures.trees_of_rows import branching

# One rank has rows that share much, the other one has rows that share nothing.
SHARING = [row for row in branching(3, leaves=30) if len(row) > 4][:10]
APART = [np.random.default_rng(seed).integers(0, 61, 14) for seed in range(10)]
PROMPT = 2


def learn(folder: Path, store: Path, rank: int, size: int, queue: Any) -> None:
    batch = batch_of([*SHARING, *APART], [PROMPT] * 20, max_token_len_per_gpu=60)
    with process_group(store, rank, size):
        engine = build_engine(folder, tree=True)
        with engine.train_mode():
            mine = range(rank * 20 // size, (rank + 1) * 20 // size)
            found = engine.forward_backward_batch(tu.index_select_tensor_dict(batch, list(mine)), loss_of())
            learned = gradients(engine)
    queue.put((rank, learned, found["metrics"]["sharing/micro_batches"][0]))


def outcomes(folder: Path, store: Path, size: int) -> list[Any]:
    processes = multiprocessing.get_context("spawn")
    queue = processes.Queue()
    started = [processes.Process(target=learn, args=(folder, store, rank, size, queue)) for rank in range(size)]
    for process in started:
        process.start()
    try:
        found: list[Any] = []
        while len(found) < size:
            with contextlib.suppress(Empty):
                found.append(queue.get(timeout=1))
            assert not any(process.exitcode for process in started), "a rank has failed"
    finally:
        # A rank that has failed leaves the other one waiting.
        for process in started:
            process.join(5)
            process.kill()
    return sorted(found, key=lambda outcome: outcome[0])


def test_two_ranks_learn_what_one_learns(tmp_path: Path) -> None:
    folder = write_byte_model(tmp_path / "model")
    ((_, alone, _),) = outcomes(folder, tmp_path / "one", 1)
    (_, left, parts), (_, right, others) = outcomes(folder, tmp_path / "two", 2)
    assert parts == others > 1, "a rank with fewer micro-batches would wait for ever"
    scale = max(float(np.abs(grad).max()) for grad in alone.values())
    for name, grad in alone.items():
        assert np.array_equal(left[name], right[name])
        assert left[name] == pytest.approx(grad, abs=2e-5 * scale), name
