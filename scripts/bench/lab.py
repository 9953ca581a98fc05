#!/usr/bin/env python3
"""The matrix of the lab: every method that its worlds can feed, in every world, and the bias of each one's gradient.

    python scripts/bench/lab.py --seeds 10 --keep runs/lab.json

Writes `verl_hier/lab/results.json`, from which `verl-hier lab recommend` and the tables of docs/lab.md are made. It can
be stopped at any time: `--keep` holds the runs that are done.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from verl_hier.host.manager import PluginHost
from verl_hier.lab.bias import measure
from verl_hier.lab.learn import Setting
from verl_hier.lab.methods import method
from verl_hier.lab.study import QUICK_WORLDS, feedable, store, study, summarise
from verl_hier.lab.worlds import WORLDS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--batches", type=int, default=2000)
    parser.add_argument("--keep", type=Path, default=Path("runs/lab.json"))
    chosen = parser.parse_args()
    host, setting = PluginHost.load({"builtin": True}, "estimator"), Setting()
    names = feedable(host)
    cells = [(name, world, seed) for name in names for world in WORLDS for seed in range(chosen.seeds)]
    chosen.keep.parent.mkdir(parents=True, exist_ok=True)
    found = study(cells, setting, chosen.keep, {"builtin": True}, note=report)
    table = {}
    for name in names:
        for world in WORLDS:
            summary = summarise(found[name, world, seed] for seed in range(chosen.seeds))
            if summary is not None:
                table[name, world] = summary
    biases = []
    for name in names:
        for world in QUICK_WORLDS:
            if (name, world) in table:
                made = measure(WORLDS[world], method(name, host), chosen.batches)
                if made is None:
                    continue
                numbers = [made.bias, *made.interval, made.noise, made.scale]
                biases.append({"method": name, "world": world, "numbers": [round(number, 4) for number in numbers]})
    store(table, setting, bias=biases, batches=chosen.batches)


def report(done: int, all_: int) -> None:
    """Say how far the runs are."""
    if done % 200 == 0 or done == all_:
        print(f"{done} of {all_} runs", flush=True)


if __name__ == "__main__":
    main()
