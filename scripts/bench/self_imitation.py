#!/usr/bin/env python3
"""Self-imitation in the lab: what a run learns with and without it, and how the age of rows biases their gradient.

    python scripts/bench/self_imitation.py --seeds 10 --batches 100

Writes docs/self_imitation.json, from which the tables of docs/self_imitation.md are made.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from verl_hier.lab.imitation import CHOSEN, CORRECTIONS, Aged, by_age
from verl_hier.lab.learn import Setting, learn
from verl_hier.lab.methods import method
from verl_hier.lab.worlds import WORLDS
from verl_hier.training.options import SelfImitationOptions

OUT = Path(__file__).parents[2] / "docs" / "self_imitation.json"
METHOD = "grpo"
TURNS, RATE = 10_000, 0.05
LEARNED = ("horizon", "decisive", "delayed", "stochastic", "two_clocks", "maze", "early_end")
AGED = ("maze", "two_clocks", "stochastic")
AGES = (0, 1, 2, 5, 10, 20)
AGED_SEEDS, AGED_STEPS = 2, 25
KEPT = SelfImitationOptions(rows=64, fill=0.0, limit=4096, max_age=5, baselines=256, warmup=0)
OLD = replace(KEPT, fill=1.0, max_age=20)
ARMS: Mapping[str, tuple[int, SelfImitationOptions | None, bool]] = {
    "without": (1, None, True),
    "without, each batch twice": (2, None, True),
    "with": (1, KEPT, True),
    "with, no ratio": (1, KEPT, False),
    "with older rows": (1, OLD, True),
    "with older rows, no ratio": (1, OLD, False),
}
"""Epochs on a step's own batch, self-imitation, and whether its ratio is taken."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--batches", type=int, default=100)
    parser.add_argument("--processes", type=int, default=1)
    chosen = parser.parse_args()
    cells = [(world, arm, seed) for world in LEARNED for arm in ARMS for seed in range(chosen.seeds)]
    old = [(world, seed, chosen.batches) for world in AGED for seed in range(AGED_SEEDS)]
    with ProcessPoolExecutor(chosen.processes) as pool:
        learned = list(pool.map(learned_by, cells, chunksize=4))
        aged = [each for found in pool.map(aged_in, old) for each in found]
    known = {"seeds": chosen.seeds, "turns": TURNS, "rate": RATE, "aged_seeds": AGED_SEEDS, "batches": chosen.batches}
    OUT.write_text(json.dumps({**known, "learned": learned, "aged": aged}, indent=1) + "\n", encoding="utf-8")


def learned_by(cell: tuple[str, str, int]) -> dict[str, Any]:
    """The regret at the end of one run, and its optimiser steps."""
    world, arm, seed = cell
    epochs, imitation, corrected = ARMS[arm]
    plain = method(METHOD)
    made = replace(plain, loss=replace(plain.loss, epochs=epochs))
    curve = learn(WORLDS[world], made, seed, Setting(turns=TURNS, rate=RATE), imitation, corrected)
    regret, middle = curve.regret[-1], mean(curve.regret)
    return {"world": world, "arm": arm, "seed": seed, "regret": regret, "mean": middle, "updates": curve.updates}


def aged_in(asked: tuple[str, int, int]) -> list[dict[str, Any]]:
    """The bias of rows of every age in one world and run."""
    world, seed, batches = asked
    found = by_age(WORLDS[world], method(METHOD), AGES, steps=AGED_STEPS, batches=batches, seed=seed, rate=RATE)
    return [{"world": world, "seed": seed, **_numbers(each)} for each in found]


def _numbers(aged: Aged) -> dict[str, Any]:
    bias = {
        f"{which} {correction}": None if (made := aged.found[which, correction]) is None else round(made.bias, 4)
        for which in CHOSEN
        for correction in CORRECTIONS
    }
    scale = {
        f"{which} {correction}": None if (made := aged.found[which, correction]) is None else round(made.scale, 4)
        for which in CHOSEN
        for correction in CORRECTIONS
    }
    distance, outside = round(aged.distance, 5), round(aged.outside, 4)
    return {"age": aged.age, "distance": distance, "outside": outside, "bias": bias, "scale": scale}


def learned_table(measured: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """A row for each arm: regret at the end in each world with its standard error, and optimiser steps."""
    for arm in ARMS:
        cells, updates = [], []
        for world in LEARNED:
            runs = [each for each in measured["learned"] if (each["world"], each["arm"]) == (world, arm)]
            regrets = [each["regret"] for each in runs]
            updates += [each["updates"] for each in runs]
            cells.append(f"{mean(regrets):.2f} ± {stdev(regrets) / len(regrets) ** 0.5:.2f}")
        yield (arm, *cells, f"{mean(updates):.0f}")


def aged_table(measured: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """A row for each world and age: distance, share outside of the clip range, and the biases, means over the runs."""
    names = [f"{which} {correction}" for which in CHOSEN for correction in CORRECTIONS]
    for world in AGED:
        for age in AGES:
            runs = [each for each in measured["aged"] if (each["world"], each["age"]) == (world, age)]
            far, outside = mean(each["distance"] for each in runs), mean(each["outside"] for each in runs)
            cells = [_bias(runs, name) for name in names]
            yield (f"`{world}`", str(age), f"{far:.4f}", f"{outside:.0%}", *cells)


def _bias(runs: list[dict[str, Any]], name: str) -> str:
    """The mean bias; `away` where the mean gradient points away from the exact one, `none` where there is none."""
    found = [(each["bias"][name], each["scale"][name]) for each in runs]
    if any(bias is None for bias, _ in found):
        return "none"
    text = f"{mean(bias for bias, _ in found):.2f}"
    return f"{text}, away" if mean(scale for _, scale in found) < 0 else text


if __name__ == "__main__":
    main()
