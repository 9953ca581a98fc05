#!/usr/bin/env python3
"""The matrix of the lab: every method that its worlds can feed, the product's samplers and schedules, and the bias of
each one's gradient.

    python scripts/bench/lab.py --seeds 10 --keep runs/lab

Writes `verl_hier/lab/results.json`, from which `verl-hier lab recommend` and the tables of docs/lab.md are made. It can
be stopped at any time and goes on from the files in `--keep`; `--hours` begins nothing new after so long.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from verl_hier.host.manager import PluginHost
from verl_hier.lab.bias import measure
from verl_hier.lab.learn import Setting
from verl_hier.lab.methods import method
from verl_hier.lab.parts import (
    LONGER_TURNS,
    SAMPLED_RATE,
    SAMPLED_TASKS,
    SAMPLED_TURNS,
    SAMPLED_WORLDS,
    SCHEDULED_WORLDS,
    sampled,
    scheduled,
)
from verl_hier.lab.reasons import BUDGET, cause
from verl_hier.lab.study import BIASED_WORLDS, Cell, Table, feedable, store, study, summarise, write_lines
from verl_hier.lab.worlds import WORLDS

PIECE = 60
"""Runs between two looks at the clock."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--sampler-seeds", type=int, default=3)
    parser.add_argument("--batches", type=int, default=1000)
    parser.add_argument("--sampler-batches", type=int, default=100)
    parser.add_argument("--processes", type=int, help="side by side; as many as there are cores when omitted")
    parser.add_argument("--keep", type=Path, default=Path("runs/lab"))
    parser.add_argument("--hours", type=float, default=math.inf)
    chosen = parser.parse_args()
    chosen.keep.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + 3600 * chosen.hours
    names = feedable(PluginHost.load({"builtin": True}))
    places = [(name, world) for name in names for world in WORLDS]
    drawn = [(name, world) for name in sampled() for world in SAMPLED_WORLDS]
    drawn += [(name, world) for name in scheduled() for world in SCHEDULED_WORLDS]
    setting, short = Setting(), Setting(SAMPLED_TURNS, SAMPLED_TASKS, SAMPLED_RATE)
    more = replace(short, turns=LONGER_TURNS)

    def learned(places: Sequence[tuple[str, str]], seeds: int, setting: Setting, name: str) -> Table:
        return learn_all(places, seeds, setting, chosen.keep / f"{name}.json", end, chosen.processes)

    summaries = learned(places, chosen.seeds, setting, "methods")
    samplers = learned(drawn, chosen.sampler_seeds, short, "samplers")
    longer = learned(
        [place for place, summary in samplers.items() if summary.verdict != "learns" and cause(*place) == BUDGET],
        chosen.sampler_seeds, more, "longer",
    )  # fmt: skip
    asked = [(name, world, chosen.batches) for name in names for world in BIASED_WORLDS if (name, world) in summaries]
    asked += [
        (name, world, chosen.sampler_batches)
        for name in sampled()
        for world in BIASED_WORLDS
        if (name, world) in samplers
    ]
    biases = biased(asked, chosen.keep / "bias.json", end, chosen.processes)
    store(
        summaries=summaries,
        samplers=samplers,
        longer=longer,
        setting=asdict(setting),
        sampler_setting=asdict(short),
        longer_setting=asdict(more),
        batches=[chosen.batches, chosen.sampler_batches],
        bias=biases,
    )


def learn_all(
    places: Sequence[tuple[str, str]], seeds: int, setting: Setting, keep: Path, end: float, processes: int | None
) -> Table:
    """What each method has learned in each world, in pieces."""
    cells: list[Cell] = [(name, world, seed) for seed in range(seeds) for name, world in places]
    found: dict[Cell, dict[str, Any]] = {}
    for start in range(0, len(cells), PIECE):
        in_time(end)
        found |= study(cells[start : start + PIECE], setting, keep, {"builtin": True}, processes)
        print(f"{keep.name}: {len(found)} of {len(cells)} runs", flush=True)
    made = {(name, world): summarise(found[name, world, seed] for seed in range(seeds)) for name, world in places}
    return {place: summary for place, summary in made.items() if summary is not None}


def biased(
    asked: Sequence[tuple[str, str, int]], keep: Path, end: float, processes: int | None
) -> list[dict[str, Any]]:
    """The bias of each gradient, as `study.store` keeps it."""
    known = json.loads(keep.read_text())["bias"] if keep.is_file() else []
    done = {(each["method"], each["world"]): each for each in known}
    missing = [each for each in asked if each[:2] not in done]
    with ProcessPoolExecutor(processes) as pool:
        for start in range(0, len(missing), 10):
            in_time(end)
            for made in pool.map(bias_of, missing[start : start + 10]):
                done[made["method"], made["world"]] = made
            write_lines(keep, {"bias": list(done.values())})
            print(f"{keep.name}: {min(start + 10, len(missing))} of {len(missing)}", flush=True)
    return [done[name, world] for name, world, _ in asked if done[name, world]["numbers"]]


def bias_of(asked: tuple[str, str, int]) -> dict[str, Any]:
    """Bias, its interval, noise and scale of one gradient, and what there is for each role."""
    name, world, batches = asked
    made = measure(WORLDS[world], method(name), batches)
    numbers = [] if made is None else [made.bias, *made.interval, made.noise, made.scale]
    roles = {} if made is None else {role: [round(x, 4) for x in pair] for role, pair in made.roles.items() if pair[0]}
    silent = None if made is None else round(made.silent, 4)
    rounded = [round(number, 4) for number in numbers]
    return {"method": name, "world": world, "numbers": rounded, "silent": silent, "roles": roles}


def in_time(end: float) -> None:
    """Stop when the hours are over."""
    if time.monotonic() > end:
        raise SystemExit("The hours are over; call it again to go on.")


if __name__ == "__main__":
    main()
