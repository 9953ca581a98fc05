"""Two ranks learn what one learns: with different trees and equally many micro-batches, and a critic with heads."""

from __future__ import annotations

import contextlib
import multiprocessing
from functools import partial
from pathlib import Path
from queue import Empty
from typing import Any

import numpy as np
import pytest
import torch
from verl.utils import tensordict_utils as tu
from verl.workers.config import CriticConfig

from tests.fixtures.byte_model import write_byte_model
from tests.fixtures.engines_alone import batch_of, build_engine, gradients, loss_of, process_group
from tests.fixtures.trees_of_rows import branching
from verl_hier.engines.copies import SlowCopy
from verl_hier.engines.value_heads import value_heads_loss
from verl_hier.training.value_heads import mask_of, returns_of, values_of

# One rank has rows that share much, the other one has rows that share nothing.
SHARING = [row for row in branching(3, leaves=30) if len(row) > 4][:10]
APART = [np.random.default_rng(seed).integers(0, 61, 14) for seed in range(10)]
PROMPT = 2
HEADS = {"low": 1.0, "high": 0.5}


def heads_batch() -> Any:
    """One head learns at every token; the other one in three rows, all of which the first rank has."""
    batch = batch_of([*SHARING, *APART], [PROMPT] * 20, max_token_len_per_gpu=60)
    for head, rows in zip(HEADS, (20, 3), strict=True):
        parts = [torch.full((len(row),), float(at < rows)) for at, row in enumerate(batch["responses"].unbind())]
        batch[mask_of(head)] = torch.nested.as_nested_tensor(parts, layout=torch.jagged)
        batch[returns_of(head)], batch[values_of(head)] = batch[mask_of(head)] * rows, batch[mask_of(head)] * 0.0
    return batch


def critic_step(folder: Path, mine: list[int]) -> dict[str, np.ndarray]:
    """The gradient of a critic with heads, and where a copy of it stands after one optimiser step."""
    engine = build_engine(folder, heads=tuple(HEADS))
    copy = SlowCopy(engine.module)
    config = CriticConfig(strategy="fsdp2", ppo_micro_batch_size_per_gpu=1, rollout_n=1, cliprange_value=100.0)
    with engine.train_mode():
        data = tu.index_select_tensor_dict(heads_batch(), mine)
        engine.forward_backward_batch(data, partial(value_heads_loss, config, HEADS))
        # Copies: the optimiser step clips gradients in place.
        found = {name: grad.copy() for name, grad in gradients(engine).items()}
        engine.optimizer_step()
    copy.follow(0.25)
    copy.exchange()
    copied = {name: weight.full_tensor().detach().numpy() for name, weight in engine.module.named_parameters()}
    return found | {f"copy of {name}": weight for name, weight in copied.items()}


def learn(folder: Path, store: Path, rank: int, size: int, queue: Any) -> None:
    batch = batch_of([*SHARING, *APART], [PROMPT] * 20, max_token_len_per_gpu=60)
    with process_group(store, rank, size):
        engine = build_engine(folder, tree=True)
        with engine.train_mode():
            mine = range(rank * 20 // size, (rank + 1) * 20 // size)
            found = engine.forward_backward_batch(tu.index_select_tensor_dict(batch, list(mine)), loss_of())
            learned = gradients(engine)
        learned |= {f"critic {name}": part for name, part in critic_step(folder, list(mine)).items()}
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


@pytest.mark.slow
def test_two_ranks_learn_what_one_learns(tmp_path: Path) -> None:
    folder = write_byte_model(tmp_path / "model")
    ((_, alone, _),) = outcomes(folder, tmp_path / "one", 1)
    (_, left, parts), (_, right, others) = outcomes(folder, tmp_path / "two", 2)
    assert parts == others > 1, "a rank with fewer micro-batches would wait for ever"
    for kind in (False, True):
        names = [name for name in alone if name.startswith("critic ") is kind]
        scale = max(float(np.abs(alone[name]).max()) for name in names if "copy of" not in name)
        assert names and scale > 0
        for name in names:
            assert np.array_equal(left[name], right[name])
            assert left[name] == pytest.approx(alone[name], abs=2e-5 * scale), name
