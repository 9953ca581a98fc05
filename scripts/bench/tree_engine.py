"""Stock engine against tree engine on the same rows: time and peak memory of an update and of log-probs.

    python scripts/bench/tree_engine.py --quick --out docs/tree_engine.json

The rows are those of five shapes, those that recipes with trees roll out, offline and with a policy of random weights,
and those of the last stored step of each run that is named. Both engines are verl's FSDP2 engine on a CPU, in one
process each, with a random model of 4 layers and width 256, and verl's own loss. Seconds are those of one thread on a
processor, not on the wall. Without --quick every measurement is made three times, and the table has the medians.
docs/tree_engine.md has the table; `python scripts/docs.py` makes it from the file that --out writes.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("VERL_PLATFORM", "cpu")
sys.path.insert(0, str(Path(__file__).parents[2]))

import numpy as np
import torch
from tree_engine_table import ENGINES, HEAD, cells

from tests.fixtures.byte_model import write_byte_model
from tests.fixtures.engines_alone import batch_of, build_engine, loss_of, process_group
from verl_hier import roll_out
from verl_hier.coldstart.build import random_model
from verl_hier.engines import fsdp
from verl_hier.engines.packing import Packed
from verl_hier.graph import RolloutGraph
from verl_hier.graph.rows import SharedPrefix
from verl_hier.ops.sharing import last_step, trained_rows
from verl_hier.ops.stored import Stored
from verl_hier.recipe.composed import ComposedRecipe
from verl_hier.training.sharing import Row, Sharing

VOCABULARY = 250
RECIPES = ("himac_alfworld", "arpo_alfworld", "tree_grpo_alfworld", "treerl_alfworld")
TASKS = 2
"""That are rolled out of each recipe."""
T = TypeVar("T")
Rows = tuple[list[Row], list[int]]
"""Rows of token ids, and how many tokens of each are its prompt."""


def answers(prompts: int, prompt: int, response: int, low: int = 0) -> Rows:
    """8 answers to each prompt, of `response` tokens, or of `low` to `response` of them."""
    rng = np.random.default_rng(0)
    rows = []
    for _ in range(prompts):
        question = rng.integers(0, VOCABULARY, prompt)
        lengths = rng.integers(low or response, response + 1, 8)
        rows += [np.concatenate([question, rng.integers(0, VOCABULARY, length)]) for length in lengths]
    return rows, [prompt] * len(rows)


def chains_with_branches() -> Rows:
    """4 chains of 4 turns of 100 tokens after a prompt of 200, and a branch of each from its middle."""
    rng = np.random.default_rng(0)
    question = rng.integers(0, VOCABULARY, 200)
    chains = [np.concatenate([question, rng.integers(0, VOCABULARY, 400)]) for _ in range(4)]
    branches = [np.concatenate([chain[:400], rng.integers(0, VOCABULARY, 200)]) for chain in chains]
    return [*chains, *branches], [200] * 8


def deep_tree() -> Rows:
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


def rolled_out(name: str) -> Rows:
    """The rows of tasks of a recipe, which a policy of random weights plays as in training."""
    with tempfile.TemporaryDirectory() as folder:
        recipe = ComposedRecipe.named(name)
        model = random_model([recipe], Path(folder) / "model")
        place = {"actor_rollout_ref.model.path": str(model)}
        graphs = roll_out(model, name, overrides=place, tasks=TASKS, seed=0, trees=True)
    return rows_of(graphs, recipe.hier.guards.shared_prefix)


def stored_in(path: Path) -> Rows:
    """The rows of the last stored step of a run."""
    return rows_of(*last_step(Stored.at(path)))


def rows_of(graphs: Iterable[RolloutGraph], rule: SharedPrefix) -> Rows:
    """The trained rows of rollouts, their tokens numbered anew so that the small model knows all of them."""
    found = [row for graph in graphs for row in trained_rows(graph, rule)]
    known = np.unique(np.concatenate([row for row, _ in found]))
    if len(known) > VOCABULARY:
        raise SystemExit(f"the rollouts have {len(known)} different tokens, and the model knows {VOCABULARY}.")
    return [np.searchsorted(known, row) for row, _ in found], [prompt for _, prompt in found]


class SideBySide(Packed):
    """Rows in one sequence without padding, each by itself, as kernels for sequences of different lengths take them."""

    @classmethod
    def of(cls, rows: Sequence[Row]) -> SideBySide:
        """See `Packed.of`."""
        lengths = np.array([len(row) for row in rows])
        ends = np.cumsum(lengths)
        starts = ends - lengths
        parents = np.arange(ends[-1]) - 1
        parents[starts] = -1
        return cls(
            tokens=np.concatenate(rows),
            positions=np.concatenate([np.arange(length) for length in lengths]),
            parents=parents,
            end=np.repeat(ends, lengths),
            paths=tuple(np.arange(start, end) for start, end in zip(starts, ends, strict=True)),
            starts=starts,
        )


def alone(work: Callable[..., T], *arguments: Any) -> T:
    """What a function returns in a process of its own, so that its memory is its own, too."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork")) as process:
        return process.submit(work, *arguments).result()


def measure(model: Path, made: Rows, kind: str, times: int) -> dict[str, float]:
    """Seconds of an update, seconds of log-probs and the peak of memory in MiB of an engine of `ENGINES`.

    Also the loss and the norm of the gradient of the first update, by which `require_agreement` compares them.
    """
    rows, prompts = made
    if kind == "packed":
        fsdp.Packed = SideBySide
    tokens = sum(map(len, rows))
    with tempfile.TemporaryDirectory() as folder, process_group(Path(folder) / "store"):
        engine = build_engine(model, tree=kind != "stock")
        batch = batch_of(rows, prompts, max_token_len_per_gpu=tokens, calculate_entropy=False)
        small = batch_of([np.arange(40)] * 2, [20, 20], calculate_entropy=False)
        run(engine, small)
        engine = build_engine(model, tree=kind != "stock")
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        found = [run(engine, batch.clone()) for _ in range(times)]
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    update, log_probs = (statistics.median(seconds) for seconds in list(zip(*found, strict=True))[:2])
    loss, norm = found[0][2:]
    return {"update_s": update, "log_prob_s": log_probs, "peak_mib": peak / 1024, "loss": loss, "grad_norm": norm}


def run(engine: Any, batch: Any) -> tuple[float, float, float, float]:
    """Seconds of one update and of the log-probs of a batch, loss and norm of the gradient."""
    start = time.process_time()
    with engine.train_mode():
        found = engine.train_batch(batch, loss_of())
    updated = time.process_time()
    with engine.eval_mode():
        engine.infer_batch(batch)
    return updated - start, time.process_time() - updated, sum(found["loss"]), float(found["metrics"]["grad_norm"])


def require_agreement(record: Mapping[str, Any]) -> None:
    """End the benchmark when the engines did not compute the same update."""
    for name in ("loss", "grad_norm"):
        values = [record[kind][name] for kind in ENGINES]
        if not np.allclose(values, values[0], rtol=1e-3, atol=1e-6):
            raise SystemExit(f"{record['shape']}: {', '.join(ENGINES)} disagree on the {name}: {values}.")


def measurements(times: int, shapes: Mapping[str, Rows]) -> Iterator[dict[str, Any]]:
    """One record for each shape, as soon as it is measured."""
    with tempfile.TemporaryDirectory() as folder:
        model = write_byte_model(Path(folder), hidden=256, layers=4, positions=8192)
        for shape, made in shapes.items():
            sharing = Sharing.of(made[0])
            record: dict[str, Any] = {
                "shape": shape,
                "rows": len(made[0]),
                "tokens": sharing.tokens,
                "unique": sharing.unique / sharing.tokens,
                "visible": sharing.visible / sharing.pairs,
            }
            for kind in ENGINES:
                record[kind] = alone(measure, model, made, kind, times)
            require_agreement(record)
            yield record


def plot(records: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Time of an update and of log-probs over the share of pairs of attention, and where both are the same."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 4.5), layout="constrained")
    axes.plot([0, 1], [0, 1], color="grey", linewidth=0.8, label="as many pairs as seconds")
    visible = [record["visible"] for record in records]
    for name, label in (("update_s", "update"), ("log_prob_s", "log-probs")):
        for kind, face in (("stock", None), ("packed", "none")):
            ratios = [record["tree"][name] / record[kind][name] for record in records]
            colour = "C0" if name == "update_s" else "C1"
            axes.scatter(visible, ratios, color=colour, facecolors=face or colour, label=f"{label}, of {kind}")
    axes.set(
        xlim=(0, 1), ylim=(0, 1.1), xlabel="visible pairs, share of all", ylabel="time, share of the other engine's"
    )
    axes.legend(fontsize="small")
    figure.savefig(path, dpi=130)


def processor() -> str:
    """What Linux calls the processor."""
    information = Path("/proc/cpuinfo")
    lines = information.read_text().splitlines() if information.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def main() -> None:
    """Print the table and, where asked for, write the records."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="measure once instead of three times")
    parser.add_argument("--recipes", nargs="*", default=RECIPES, help="recipes whose rollouts are measured, too")
    parser.add_argument("--runs", nargs="*", type=Path, default=(), help="runs whose stored rollouts are measured, too")
    parser.add_argument("--busy", action="store_true", help="note that other work ran on this machine meanwhile")
    parser.add_argument("--out", type=Path, help="file for the records as JSON; a plot is written beside it")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    shapes = {shape: make() for shape, make in SHAPES.items()}
    shapes |= {f"`{name}`, {TASKS} tasks": alone(rolled_out, name) for name in arguments.recipes}
    shapes |= {f"`{path.name}`, its last step": stored_in(path) for path in arguments.runs}
    print(f"| {' | '.join(HEAD)} |\n|{'---|' * len(HEAD)}")
    records = []
    for record in measurements(1 if arguments.quick else 3, shapes):
        records.append(record)
        print(f"| {' | '.join(cells(record))} |", flush=True)
    if arguments.out:
        about = {
            "date": datetime.now(UTC).date().isoformat(),
            "machine": processor(),
            "busy": arguments.busy,
            "times": 1 if arguments.quick else 3,
            **{name: version(name) for name in ("verl", "torch")},
        }
        arguments.out.write_text(json.dumps({"about": about, "shapes": records}, indent=1) + "\n", encoding="utf-8")
        plot(records, arguments.out.with_suffix(".png"))


if __name__ == "__main__":
    main()
