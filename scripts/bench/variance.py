#!/usr/bin/env python3
"""What a critic takes out of the gradient's noise: HAE, flat GAE, GiGPO and GRPO on worlds with known values.

    python scripts/bench/variance.py                  # a minute
    python scripts/bench/variance.py --out docs/variance.json

Every method sees the same number of sampled turns at one fixed policy; its mean gradient is compared with the exact
one. The critic knows the exact values, or misses them by a fixed error at each state and turn. Nothing is scaled by a
standard deviation, so that only the credit itself is compared. `--out` keeps the table, which docs/critics.md shows.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from verl_hier.credit import Credit
from verl_hier.graph.turn_table import TurnTable
from verl_hier.host.manager import PluginHost
from verl_hier.lab.bias import Measured, measure
from verl_hier.lab.methods import Method, method
from verl_hier.lab.world import World
from verl_hier.lab.worlds import WORLDS

TRIED: tuple[tuple[str, str, dict[str, Any], bool], ...] = (
    ("HAE", "hiper", {"norm_adv": False, "format_penalty": 0.0}, True),
    ("flat GAE", "gae", {}, True),
    ("GiGPO", "gigpo", {"norm": "mean_norm", "gamma": 1.0}, False),
    ("GRPO", "grpo", {"scale": "none"}, False),
)
"""Name in the table, method of the lab, its options, and whether it reads a critic."""
PLACES = ("two_clocks", "noisy_plans")
"""Worlds with a planner, on which HAE has both of its clocks."""
ERRORS = (0.0, 0.05)
"""Standard deviation of the critic's error, in units of the return."""
CRITIC = ("value", "value_low", "value_high")
LINE = "{world:<13}{method:<10}{critic:<14}{bias:<24}{noise:>12}"


def erring(world: World, credit: Callable[[TurnTable], Credit], error: float) -> Callable[[TurnTable], Credit]:
    """Credit from a critic that misses the value of a state at a turn by a normal error, the same in every batch."""
    errors = np.random.default_rng(0).normal(scale=error, size=(world.horizon, len(world.start)))

    def missed(table: TurnTable) -> Credit:
        wrong = errors[table["turn"], table["anchor"]]
        return credit(dataclasses.replace(table, turns={**table.turns, **{n: table[n] + wrong for n in CRITIC}}))

    return missed


def rows(batches: int, seed: int) -> list[dict[str, str]]:
    """The table."""
    host = PluginHost.load({"builtin": True}, "estimator")
    found = []
    for world in (WORLDS[name] for name in PLACES):
        for title, name, options, reads in TRIED:
            made = method(name, host, options)
            for error in ERRORS if reads else ERRORS[:1]:
                critic = "none" if not reads else f"errs by {error}" if error else "exact"
                played = Method(title, erring(world, made.credit, error), made.shape)
                found.append(row((world.name, title, critic), measure(world, played, batches, seed=seed)))
    return found


def row(names: tuple[str, str, str], made: Measured | None) -> dict[str, str]:
    """A line of the table: world, method, critic, bias, noise."""
    assert made is not None, "each of them gives credit"
    low, high = made.interval
    bias = f"{max(low, 0):.2f} to {high:.2f}" + (", unbiased" if made.unbiased else "")
    return {**dict(zip(("world", "method", "critic"), names, strict=True)), "bias": bias, "noise": f"{made.noise:.0f}"}


def main() -> None:
    """Measure, print, and keep."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batches", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    found = rows(chosen.batches, chosen.seed)
    print(LINE.format(world="world", method="method", critic="critic", bias="bias, 95 %", noise="noise a turn"))
    for each in found:
        print(LINE.format(**each))
    if chosen.out:
        chosen.out.write_text(json.dumps({"batches": chosen.batches, "rows": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
