"""An update of the policy by verl's engine and by the tree engine beside a plain loop of PyTorch, on the same rows.

A plain loop forwards padded micro-batches through the model of transformers, takes the log-probs of the answers, and
steps AdamW. verl's engine does the same work behind its own interface, with its own loss. What only reinforcement
learning needs is counted apart: log-probs of the policy before the update, and the entropy. All sides have one thread,
float32 and the same micro-batches, and take turns; seconds are those of the processor.

The limits of the processor stand beside them: the products of matrices that an update needs, six for each weight and
token, at the rate of a large product of its own; and how long one reading of the weights takes, at the rate of a copy,
which no answer's next token is faster than.

    python scripts/bench/plain_update.py                      # a random model of 1.4 million parameters
    python scripts/bench/plain_update.py --model smollm2      # a folder, see docs/real_model.md
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("VERL_PLATFORM", "cpu")
sys.path.insert(0, str(Path(__file__).parents[2]))  # for the fixtures of the tests

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from tests.fixtures.byte_model import write_byte_model
from tests.fixtures.engines_alone import batch_of, build_engine, loss_of, process_group

Rows = list[list[int]]
FORWARD_AND_BACKWARD = 6
"""Floating-point operations of an update for each weight and token: two forward, four backward."""


def rows_of(options: argparse.Namespace, vocabulary: int) -> Rows:
    """`answers` rows for each prompt, of one length."""
    generator = torch.Generator().manual_seed(0)
    rows = []
    for _ in range(options.prompts):
        prompt = torch.randint(0, vocabulary, (options.prompt,), generator=generator).tolist()
        answers = torch.randint(0, vocabulary, (options.answers, options.answer), generator=generator).tolist()
        rows += [prompt + answer for answer in answers]
    return rows


class PlainLoop:
    """What somebody would write without a trainer.

    Args:
        folder: of the model.
        rows: its batch.
        prompt: tokens of a prompt, which are not trained.
        micro: rows that are computed at once.
    """

    def __init__(self, folder: Path, rows: Rows, prompt: int, micro: int) -> None:
        self._model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa")
        self._optimiser = torch.optim.AdamW(self._model.parameters(), lr=1e-6)
        self._rows, self._prompt, self._micro = torch.tensor(rows), prompt, micro
        self._advantages = torch.randn(len(rows), 1, generator=torch.Generator().manual_seed(0))

    def update(self) -> None:
        """One step of the optimiser on all rows."""
        for start in range(0, len(self._rows), self._micro):
            rows, advantages = (each[start : start + self._micro] for each in (self._rows, self._advantages))
            logits = self._model(input_ids=rows, use_cache=False).logits[:, self._prompt - 1 : -1]
            answers = rows[:, self._prompt :]
            chosen = logits.gather(2, answers[..., None])[..., 0] - logits.logsumexp(2)
            (-(advantages * chosen).sum() / self._rows[:, self._prompt :].numel()).backward()
        torch.nn.utils.clip_grad_norm_(self._model.parameters(), 1.0)
        self._optimiser.step()
        self._optimiser.zero_grad()


class OfVerl:
    """verl's engine, or the tree engine, on the same batch."""

    def __init__(self, folder: Path, rows: Rows, options: argparse.Namespace, tree: bool) -> None:
        self._engine, self._rows, self._options = build_engine(folder, tree), rows, options
        self._loss = loss_of()

    def _batch(self, **request: Any) -> Any:
        tokens = self._options.micro * len(self._rows[0])
        rows = [np.array(row) for row in self._rows]
        return batch_of(rows, [self._options.prompt] * len(self._rows), max_token_len_per_gpu=tokens, **request)

    def update(self, entropy: bool = False) -> None:
        """One step of the optimiser on all rows."""
        batch = self._batch(calculate_entropy=entropy)
        with self._engine.train_mode():
            self._engine.optimizer_zero_grad()
            self._engine.forward_backward_batch(batch, self._loss)
            self._engine.optimizer_step()

    def log_probs(self) -> None:
        """Those of the policy before the update."""
        batch = self._batch(calculate_entropy=False)
        with self._engine.eval_mode():
            self._engine.infer_batch(batch, loss_function=None)


def seconds(call: Callable[[], object]) -> float:
    """Of the processor."""
    start = time.process_time()
    call()
    return time.process_time() - start


def limits(weights: int, tokens: int) -> tuple[float, float]:
    """Seconds of the products of an update, and of one reading of the weights, at the rates that are measured here."""
    square = torch.randn(1536, 1536)
    product = min(seconds(lambda: square @ square) for _ in range(5)) / (2 * 1536**3)
    store = torch.randn(64_000_000)
    reading = min(seconds(lambda: store.sum()) for _ in range(3)) / store.numel()
    return FORWARD_AND_BACKWARD * weights * tokens * product, weights * reading


def main() -> None:
    """Measure, and print a line for each side."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="a folder with a model, in place of a random one")
    parser.add_argument("--prompts", type=int, default=4)
    parser.add_argument("--answers", type=int, default=8, help="for each prompt")
    parser.add_argument("--prompt", type=int, default=48, help="tokens of a prompt")
    parser.add_argument("--answer", type=int, default=32, help="tokens of an answer")
    parser.add_argument("--micro", type=int, default=8, help="rows that are computed at once")
    parser.add_argument("--rounds", type=int, default=5, help="of all sides; the first is not counted")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as made, process_group(Path(made) / "store"):
        model = options.model or write_byte_model(Path(made) / "model", hidden=192, layers=4)
        rows = rows_of(options, AutoConfig.from_pretrained(model).vocab_size)
        plain = PlainLoop(model, rows, options.prompt, options.micro)
        stock, tree = (OfVerl(model, rows, options, kind) for kind in (False, True))
        sides: dict[str, Callable[[], None]] = {
            "plain loop": plain.update,
            "verl's engine": stock.update,
            "tree engine": tree.update,
            "verl's engine with entropy": lambda: stock.update(entropy=True),
            "verl's engine, log-probs before": stock.log_probs,
            "tree engine, log-probs before": tree.log_probs,
        }
        times: dict[str, list[float]] = {side: [] for side in sides}
        for number in range(options.rounds):
            for side, call in list(sides.items())[:: 1 if number % 2 else -1]:
                times[side].append(seconds(call))
        weights = sum(each.numel() for each in plain._model.parameters())
    medians = {side: statistics.median(taken[1:]) for side, taken in times.items()}
    products, reading = limits(weights, sum(map(len, rows)))
    print(f"{weights / 1e6:.2f}M weights, {len(rows)} rows of {len(rows[0])} tokens, {options.micro} at once")
    for side, median in medians.items():
        print(f"{side:34}{median:8.2f} s   {medians['plain loop'] / median:5.2f} of the plain loop's rate")
    print(f"{'products of matrices alone':34}{products:8.2f} s")
    print(f"{'one reading of the weights':34}{reading:8.4f} s")


if __name__ == "__main__":
    main()
