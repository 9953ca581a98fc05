#!/usr/bin/env python3
"""What a step costs as its turns grow: rollout workers send and write it; the trainer makes turn table, credit, loss
weights, metrics and the mark of the store; and it is read.

Rollouts are made up: independent episodes of one growing context, with random tokens and log-probs. Each size is
measured in a process of its own, in processor time, which other work on the machine hardly changes. With `--against`,
the same is done with the code of another revision of this repository, and the two are compared.

    python scripts/bench/scale.py --quick --against 1376c21
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SIZES = {
    "10k turns, 3.1M tokens": (32, 16, 20, 300),
    "82k turns, 24.6M tokens": (256, 16, 20, 300),
    "1M turns, 3.1M tokens": (3200, 16, 20, 3),
}
"""Tasks, episodes of each task, turns of each episode, and tokens of each turn, a sixth of which are observed."""
TOGETHER = 8
"""Tasks that a worker writes at a time."""
QUICK = ("82k turns, 24.6M tokens",)


def one_graph(task: int, episodes: int, turns: int, tokens: int) -> Any:
    """A rollout graph of independent episodes."""
    from verl_hier.graph import EpisodeRecord, Node, RolloutGraph

    dice = random.Random(task)
    graph = RolloutGraph(task={"uid": f"{task:06d}", "index": task, "data_source": "made up"})
    observed = tokens // 6
    for episode in range(episodes):
        leaf = -1
        for turn in range(turns):
            node = Node(
                id=len(graph.nodes), parent=leaf, context=leaf, episode=episode, agent="agent", role="agent", level=0,
                turn=turn, segment=0, plan=-1, observation=dice.choices(range(50_000), k=observed),
                action=dice.choices(range(50_000), k=tokens - observed),
                logprobs=[-dice.random() for _ in range(tokens - observed)], prompt_tokens=tokens * turn + observed,
                done=turn == turns - 1, reward=float(turn == turns - 1 and dice.random() < 0.5), anchor=str(turn),
                stop_reason="stop", extra={"format": 1.0},
            )  # fmt: skip
            graph.nodes.append(node)
            leaf = node.id
        record = EpisodeRecord(episode, tree=episode, leaf=leaf, status="finished", ret=graph.nodes[leaf].reward)
        graph.episodes.append(record)
    return graph


def measure(size: tuple[int, int, int, int], folder: str) -> dict[str, float]:
    """Processor seconds of each part, and the largest memory in GB that the trainer's parts need."""
    import numpy as np

    from verl_hier.credit import Credit
    from verl_hier.graph import build_table
    from verl_hier.ops.offline import batches

    build_table([])  # imports what the first table needs, once a process
    found: dict[str, float] = {}

    def part(name: str, call: Callable[[], Any]) -> Any:
        started = time.process_time()
        result = call()
        found[name] = found.get(name, 0.0) + time.process_time() - started
        return result

    side, masks = TwoSides.of_this_revision(folder), []
    for first in range(0, size[0], TOGETHER):
        graphs = [one_graph(task, *size[1:]) for task in range(first, min(first + TOGETHER, size[0]))]
        masks += [np.asarray(row.mask, np.float32) for graph in graphs for row in side.cut(graph, part)]
        part("worker: tasks written", lambda graphs=graphs: side.write(graphs))
    mask = np.concatenate(masks)
    del masks, graphs
    ledger = part("trainer: rollouts unpacked and turn table", side.ledger)
    values = np.random.default_rng(0).normal(size=len(ledger.table))
    credit = Credit(values)
    part("trainer: credit of turns to tokens", lambda: ledger.spread(values, "turn", "once"))
    part("trainer: credit of steps to tokens", lambda: ledger.spread(values, "step", "repeat"))
    weights = part("trainer: loss weights by episode", lambda: ledger.weights(credit, mask, "episode", "once"))
    part("trainer: places of tokens", ledger.token_positions)
    part("trainer: means of tokens", lambda: ledger.turn_means(mask, mask))
    part("trainer: metrics", lambda: side.metrics(ledger))
    explained = part("trainer: credit of nodes", lambda: side.explain(ledger, credit, weights, mask))
    found["memory"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    part("trainer: store", lambda: side.store(ledger, explained))
    found["stored"] = sum(file.stat().st_size for file in Path(folder).rglob("*.parquet")) / 1e9
    part("turn table from the store", lambda: list(batches(folder)))
    return found


class TwoSides:
    """What a rollout worker sends and writes of a step, and what the trainer makes of it."""

    def __init__(self, folder: str) -> None:
        self.folder, self.tasks, self.keys = folder, 0, []
        self.sent: list[bytes] = []

    @staticmethod
    def of_this_revision(folder: str) -> Any:
        """With light and heavy parts, or for an older revision with pickled graphs."""
        try:
            import verl_hier.graph.columnar.light  # noqa: F401
        except ImportError:
            return PickledGraphs(folder)
        return TwoSides(folder)

    def cut(self, graph: Any, part: Any) -> Any:
        """The rows of a task, which is sent to the trainer."""
        from verl_hier.graph import graph_rows
        from verl_hier.graph.columnar.light import light_of, pack

        rows = graph_rows(graph, lambda node: True)
        self.sent.append(part("worker: tasks sent", lambda: pack(light_of([graph], [rows]))))
        self.keys += [f"{graph.task['uid']}_{row.episode}_0" for row in rows]
        return rows

    def write(self, graphs: Any) -> None:
        """Write tasks to the store."""
        from verl_hier.graph.columnar.held import HeldRollouts

        held = HeldRollouts()
        for graph in graphs:
            held.keep(graph)
        held.write(self.folder, 1, {graph.task["uid"]: True for graph in graphs}, f"worker{self.tasks}")
        self.tasks += len(graphs)

    def ledger(self) -> Any:
        """The ledger of what was sent."""
        from verl_hier.graph.columnar.light import unpack
        from verl_hier.training.ledger import Ledger

        return Ledger(unpack(self.sent), self.keys)

    def metrics(self, ledger: Any) -> Any:
        """The metrics of the rollouts."""
        from verl_hier.training.metrics import rollout_metrics

        return rollout_metrics(ledger.light)

    def explain(self, ledger: Any, credit: Any, weights: Any, mask: Any) -> Any:
        """What the store gets to know of each node."""
        return ledger.explain(credit, weights, mask)

    def store(self, ledger: Any, explained: Any) -> None:
        """What the trainer writes of the step."""
        from verl_hier.graph.columnar.writing import write_credit
        from verl_hier.graph.steps import step_folder

        write_credit(step_folder(self.folder, 1), 1, self.tasks, explained)


class PickledGraphs(TwoSides):
    """The same before there were light parts: the graph travels with the first row, and the trainer writes it."""

    def cut(self, graph: Any, part: Any) -> Any:
        from verl_hier.graph import graph_rows
        from verl_hier.training.ledger import RowIdentity

        rows = graph_rows(graph, lambda node: True)
        packed = part("worker: tasks sent", lambda: pickle.dumps(graph))
        for number, row in enumerate(rows):
            self.keys.append(RowIdentity(graph.task["uid"], row.episode, row.turn_index, None if number else packed))
        return rows

    def write(self, graphs: Any) -> None:
        pass

    def ledger(self) -> Any:
        from verl_hier.training.ledger import Ledger

        return Ledger(self.keys)

    def metrics(self, ledger: Any) -> Any:
        from verl_hier.training.metrics import rollout_metrics

        return rollout_metrics(ledger.graphs.values())

    def explain(self, ledger: Any, credit: Any, weights: Any, mask: Any) -> Any:
        return ledger.node_credit(credit)

    def store(self, ledger: Any, explained: Any) -> None:
        from verl_hier import graph

        if hasattr(graph, "write_step"):
            graph.write_step(self.folder, 1, ledger.graphs.values())
        else:
            graph.write_graphs(os.path.join(self.folder, "step.parquet"), ledger.graphs.values())


def run(code: Path, size: str) -> dict[str, float]:
    """Measure one size with the code in a folder, in a process of its own."""
    command = [sys.executable, __file__, "--measure", size, "--code", str(code)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def table(size: str, arms: dict[str, dict[str, float]]) -> str:
    """A table of Markdown: a line for each part, a column for each arm."""
    tasks, episodes, turns, _ = SIZES[size]
    columns = [f"{name}, s" for name in arms] + ["µs a turn", "ratio"][: len(arms)]
    lines = [f"| {size} | {' | '.join(columns)} |", "|---|" + "---|" * len(columns)]
    for part in next(iter(arms.values())):
        values = [arm[part] for arm in arms.values()]
        unit = {"memory": " (GB)", "stored": " (GB)"}.get(part, "")
        a_turn = "" if unit else f"{values[-1] / (tasks * episodes * turns) * 1e6:.2f}"
        ratio = [f"{values[0] / max(values[-1], 1e-9):.1f}"] if len(arms) > 1 else []
        cells = [part + unit, *(f"{value:.3f}" for value in values), a_turn, *ratio]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help=f"only {QUICK[0]}, which needs 8 GB of memory")
    parser.add_argument("--against", metavar="REVISION", help="a revision of this repository to compare with")
    parser.add_argument("--measure", choices=SIZES, help=argparse.SUPPRESS)
    parser.add_argument("--code", type=Path, default=ROOT, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        sys.path[:0] = [str(options.code), str(options.code / "plugins")]
        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps(measure(SIZES[options.measure], folder)))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        codes = {"this revision": ROOT}
        if options.against:
            archive = ["git", "-C", str(ROOT), "archive", options.against, "verl_hier", "plugins"]
            packed = subprocess.run(archive, check=True, capture_output=True).stdout
            subprocess.run(["tar", "-x", "-C", folder], input=packed, check=True)
            codes = {options.against: Path(folder), **codes}
        for size in QUICK if options.quick else SIZES:
            print(table(size, {name: run(code, size) for name, code in codes.items()}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
