"""Stock engine against tree engine on the same rows: time and peak memory of an update and of log-probs.

    python scripts/bench/tree_engine.py --quick

Both engines are verl's FSDP2 engine on a CPU, in one process each, with a random model of 4 layers and width 256, and
verl's own loss. Seconds are those of one thread on a processor, not on the wall. Without --quick every measurement is
made three times, and the table has the medians.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("VERL_PLATFORM", "cpu")
sys.path.insert(0, str(Path(__file__).parents[2]))

import numpy as np
import torch

from tests.fixtures.byte_model import write_byte_model
from tests.fixtures.engines_alone import batch_of, build_engine, loss_of, process_group
from verl_hier.training.sharing import Row, Sharing

VOCABULARY = 250


def answers(prompts: int, prompt: int, response: int, low: int = 0) -> tuple[list[Row], list[int]]:
    """8 answers to each prompt, of `response` tokens, or of `low` to `response` of them."""
    rng = np.random.default_rng(0)
    rows = []
    for _ in range(prompts):
        question = rng.integers(0, VOCABULARY, prompt)
        lengths = rng.integers(low or response, response + 1, 8)
        rows += [np.concatenate([question, rng.integers(0, VOCABULARY, length)]) for length in lengths]
    return rows, [prompt] * len(rows)


def chains_with_branches() -> tuple[list[Row], list[int]]:
    """4 chains of 4 turns of 100 tokens after a prompt of 200, and a branch of each from its middle."""
    rng = np.random.default_rng(0)
    question = rng.integers(0, VOCABULARY, 200)
    chains = [np.concatenate([question, rng.integers(0, VOCABULARY, 400)]) for _ in range(4)]
    branches = [np.concatenate([chain[:400], rng.integers(0, VOCABULARY, 200)]) for chain in chains]
    return [*chains, *branches], [200] * 8


def deep_tree() -> tuple[list[Row], list[int]]:
    """20 turns of 100 tokens after a prompt of 200; every chain parts in two after 5, 10 and 15 turns."""
    rng = np.random.default_rng(0)
    rows = [rng.integers(0, VOCABULARY, 700)]
    for _ in range(3):
        rows = [np.concatenate([row, rng.integers(0, VOCABULARY, 500)]) for row in rows for _ in range(2)]
    return rows, [200] * 8


SHAPES = {
    "4 prompts of 612, 8 answers of up to 64": lambda: answers(4, 612, 64, low=32),
    "1 prompt of 512, 8 answers of 128": lambda: answers(1, 512, 128),
    "1 prompt of 2048, 8 answers of 128": lambda: answers(1, 2048, 128),
    "4 chains of 4 turns, 4 branches from their middles": chains_with_branches,
    "20 turns, parted at 3 places": deep_tree,
}


def measure(model: Path, shape: str, tree: bool, times: int, queue: Any) -> None:
    """Put seconds of an update, seconds of log-probs and the peak of memory in MiB into the queue."""
    rows, prompts = SHAPES[shape]()
    tokens = sum(map(len, rows))
    with tempfile.TemporaryDirectory() as folder, process_group(Path(folder) / "store"):
        engine = build_engine(model, tree)
        batch = batch_of(rows, prompts, max_token_len_per_gpu=tokens, calculate_entropy=False)
        small = batch_of([row[:40] for row in rows[:2]], [20, 20], calculate_entropy=False)
        run(engine, small)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        found = [run(engine, batch.clone()) for _ in range(times)]
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    update, log_probs = (statistics.median(seconds) for seconds in zip(*found, strict=True))
    queue.put({"update_s": update, "log_prob_s": log_probs, "peak_mib": peak / 1024})


def run(engine: Any, batch: Any) -> tuple[float, float]:
    """Seconds of one update and of the log-probs of a batch."""
    start = time.process_time()
    with engine.train_mode():
        engine.train_batch(batch, loss_of())
    updated = time.process_time()
    with engine.eval_mode():
        engine.infer_batch(batch)
    return updated - start, time.process_time() - updated


def measurements(times: int) -> Iterator[dict[str, Any]]:
    """One record for each shape, as soon as it is measured."""
    processes = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        model = write_byte_model(Path(folder), hidden=256, layers=4, positions=8192)
        for shape, make in SHAPES.items():
            sharing = Sharing.of(make()[0])
            record: dict[str, Any] = {
                "shape": shape,
                "unique": sharing.unique / sharing.tokens,
                "visible": sharing.visible / sharing.pairs,
            }
            for name, tree in (("stock", False), ("tree", True)):
                queue = processes.SimpleQueue()
                process = processes.Process(target=measure, args=(model, shape, tree, times, queue))
                process.start()
                process.join()
                if process.exitcode:
                    raise SystemExit(f"{name} engine, {shape}: the process ended with {process.exitcode}")
                record[name] = queue.get()
            yield record


def line(record: dict[str, Any]) -> str:
    """A row of the table."""
    stock, tree = record["stock"], record["tree"]
    cells = [record["shape"], f"{record['unique']:.3f}", f"{record['visible']:.3f}"]
    for name, unit in (("update_s", "s"), ("log_prob_s", "s"), ("peak_mib", "MiB")):
        digits = 0 if unit == "MiB" else 2
        cells.append(f"{stock[name]:.{digits}f} → {tree[name]:.{digits}f} {unit} ({tree[name] / stock[name]:.2f})")
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Print the table and, where asked for, write the records."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="measure once instead of three times")
    parser.add_argument("--output", type=Path, help="file for the records as JSON")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print("| rows | unique tokens | visible pairs | update | log-probs | peak memory |")
    print("|---|---|---|---|---|---|")
    records = []
    for record in measurements(1 if arguments.quick else 3):
        records.append(record)
        print(line(record), flush=True)
    if arguments.output:
        arguments.output.write_text(json.dumps(records, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
