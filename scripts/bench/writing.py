#!/usr/bin/env python3
"""What a rollout worker pays to write a turn with its words, by the tokens that a turn has.

    python scripts/bench/writing.py [--tokens 6 60 300]

Eight tasks of 16 episodes x 20 turns are encoded one by one, as a worker holds them, and written as a step. Words come
from a small vocabulary, and log-probs are those of a server, which computes in single precision. The least processor
time of five rounds counts; a line is drawn through them, whose slope is what a token costs.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from scale import one_graph

from verl_hier.graph import RolloutGraph
from verl_hier.graph.columnar.encode import encode_whole
from verl_hier.graph.columnar.writing import write_tasks
from verl_hier.graph.nodes import Message

TASKS, EPISODES, TURNS = 8, 16, 20
ROUNDS = 5
WORDS = ["the", "shelf", "has", "two", "mugs", "and", "a", "plate", "you", "open", "drawer", "3", "see", "key", "under"]


def with_words(task: int, tokens: int) -> RolloutGraph:
    """A made-up graph with a word for each token, messages, decisions and a server's log-probs."""
    graph, dice = one_graph(task, EPISODES, TURNS, tokens), random.Random(task)
    for node in graph.nodes:
        node.text = " ".join(dice.choices(WORDS, k=len(node.action)))
        node.messages = [Message("user", " ".join(dice.choices(WORDS, k=len(node.observation))))]
        node.logprobs = np.float32(node.logprobs).astype(float).tolist()
        node.decision = {"seed": dice.randrange(2**62), "greedy": False}
    return graph


def least(call: Callable[[], object]) -> float:
    """Processor seconds of the fastest round."""
    spent = []
    for _ in range(ROUNDS):
        started = time.process_time()
        call()
        spent.append(time.process_time() - started)
    return min(spent)


def measure(tokens: int) -> tuple[float, float, float]:
    """Microseconds a turn to encode and to write, and bytes a turn."""
    graphs = [with_words(task, tokens) for task in range(TASKS)]
    count = sum(len(graph.nodes) for graph in graphs) / 1e6
    whole = [encode_whole([graph]) for graph in graphs]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        encoding = least(lambda: [encode_whole([graph]) for graph in graphs])
        writing = least(lambda: write_tasks(folder, 1, whole, "worker0"))
        size = sum(file.stat().st_size for file in folder.iterdir())
    return encoding / count, writing / count, size / count / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, nargs="+", default=[6, 60, 120, 300])
    lengths = parser.parse_args().tokens
    found = [measure(tokens) for tokens in lengths]
    print("| tokens a turn | encoded, µs a turn | written, µs a turn | turns/s a core | bytes a turn |")
    print("|---|---|---|---|---|")
    for tokens, (encoded, written, size) in zip(lengths, found, strict=True):
        print(f"| {tokens} | {encoded:.1f} | {written:.1f} | {1e6 / (encoded + written):,.0f} | {size:.0f} |")
    if len(lengths) > 1:
        slope, start = np.polyfit(lengths, [encoded + written for encoded, written, _ in found], 1)
        print(f"\n{start:.1f} µs a turn and {1000 * slope:.0f} ns a token")


if __name__ == "__main__":
    main()
