#!/usr/bin/env python3
"""A flat GRPO step of ours, of stock verl and of TRL on the same work on this machine's CPU, in one run.

A step generates 16 prompts x 8 answers of 64 tokens each and updates the policy twice, with half of the answers each
time; nothing is compared with a reference policy. TRL gets an environment of its own, which is made on the first call.
What each process of verl spends on a step is shown besides, which says where the difference is.

    python scripts/bench/against_trl.py                      # the model of overhead.py, 1.3 million parameters
    python scripts/bench/against_trl.py --model smollm2      # a folder with a model, see docs/real_model.md
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import venv
from collections import Counter
from contextlib import suppress
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).parents[2]))  # for the fixtures of the tests

from cpu_run import CpuRun
from overhead import PARTS, POLL, overrides

from tests.fixtures.byte_model import write_byte_model
from tests.fixtures.trainer import processes_of_runs
from verl_hier.compat.launch import Records
from verl_hier.recipe.compose import MAIN

TRL, TORCH = "1.16.0", "2.13.0"
ANSWERS, TOKENS = 8, 64
SIDES = {"trl-1": 1, "trl-2": 2, "sync": None, "hier_sync": None}
"""TRL with so many threads, verl's trainer, and ours."""


def trl_python(folder: Path) -> Path:
    """The interpreter of an environment that has TRL; it is made where it is missing."""
    python = folder / "bin" / "python"
    if not (folder / "complete").exists():
        venv.create(folder, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "-q", f"trl=={TRL}", f"torch=={TORCH}"], check=True)
        (folder / "complete").touch()
    return python


def of_trl(
    python: Path, model: Path, folder: Path, options: argparse.Namespace, threads: int
) -> list[dict[str, float]]:
    """Seconds of TRL's steps."""
    tasks = folder / "tasks.jsonl"
    asked = [[{"role": "user", "content": f"say {chr(97 + each % 26)}"}] for each in range(4 * options.prompts)]
    tasks.write_text("".join(json.dumps(each) + "\n" for each in asked))
    numbers = [options.prompts, ANSWERS, TOKENS, options.steps, options.micro, threads]
    command = [python, Path(__file__).with_name("trl_side.py"), model, tasks, folder / "trl", *map(str, numbers)]
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1"}
    said = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout
    return [json.loads(line) for line in said.splitlines() if line.startswith('{"step"')]


def spent() -> Counter[str]:
    """Seconds of the processor that the living processes of the runs have spent, by what they do."""
    found: Counter[str] = Counter()
    for process, line in processes_of_runs():
        with suppress(psutil.Error):
            times, name = process.cpu_times(), line[0].partition("ray::")[2].partition(".")[0]
            found[name or ("Ray" if "/ray/" in " ".join(line) else "driver")] += times.user + times.system
    return found


def of_verl(side: str, model: Path, folder: Path, options: argparse.Namespace) -> list[dict[str, float]]:
    """Seconds of the parts of verl's steps, without the first one, which warms up."""
    recipe = ["--config-name", "flat"] if side == "hier_sync" else ["+hier/size=cpu"]
    work = [*overrides(folder, options.steps, options.prompts), f"actor_rollout_ref.model.path={model}"]
    seen: dict[int, Counter[str]] = {}

    def look(records: Records) -> bool:
        if len(records) in (1, options.steps - 1) and len(records) not in seen:
            seen[len(records)] = spent()
        return False

    records = CpuRun(folder / side, [MAIN, *recipe, *work, *options.override]).finish(look)
    first, last = seen[min(seen)], seen[max(seen)]
    shares = {name: (last[name] - first[name]) / (max(seen) - min(seen)) for name in last}
    print(f"{side}: processor a step: " + ", ".join(f"{name} {s:.2f}" for name, s in Counter(shares).most_common(8)))
    return [{part: record[f"timing_s/{part}"] for part in PARTS} for record in records[1:]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="a folder; otherwise the model of overhead.py")
    parser.add_argument("--rounds", type=int, default=2, help="runs of each side, which alternate")
    parser.add_argument("--steps", type=int, default=5, help="steps of a run; the first is not counted")
    parser.add_argument("--prompts", type=int, default=16, help="prompts a step")
    parser.add_argument("--micro", type=int, default=64, help="rows that TRL computes at once")
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=[*SIDES], metavar="SIDE")
    parser.add_argument("--override", nargs="*", default=[], help="overrides of both sides of verl")
    parser.add_argument("--out", type=Path, default=Path("runs/against_trl"), help="folder of models and runs")
    options = parser.parse_args()
    folder = options.out.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "poll.py").write_text(POLL)
    model = options.model.resolve() if options.model else write_byte_model(folder, hidden=192, layers=4)
    python = trl_python(folder / "environment")
    times: dict[str, list[dict[str, float]]] = {side: [] for side in options.sides}
    for number in range(options.rounds):
        for side in options.sides if number % 2 == 0 else reversed(options.sides):
            threads = SIDES[side]
            made = (
                of_verl(side, model, folder, options)
                if threads is None
                else of_trl(python, model, folder, options, threads)
            )
            times[side] += made
            print(f"round {number + 1}, {side}: {[round(each['step'], 2) for each in made]}", flush=True)
    for side, rows in times.items():
        parts = {part: statistics.median(row[part] for row in rows) for part in rows[0]}
        print(f"{side:10}" + "".join(f"  {part} {value:.2f}" for part, value in parts.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
