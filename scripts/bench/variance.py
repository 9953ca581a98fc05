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


def erring(credit: Callable[[TurnTable], Credit], error: float) -> Callable[[TurnTable], Credit]:
    """Credit from a critic that misses the value of a state at a turn by a fixed normal error."""
    if not error:
        return credit

    def missed(table: TurnTable) -> Credit:
        state, turn = np.asarray(table["anchor"]), np.asarray(table["turn"])
        wrong = np.random.default_rng(0).normal(scale=error, size=(1 + turn.max(), 1 + state.max()))[turn, state]
        return credit(dataclasses.replace(table, turns={**table.turns, **{n: table[n] + wrong for n in CRITIC}}))

    return missed


def rows(batches: int, seed: int) -> list[dict[str, Any]]:
    """The table."""
    host = PluginHost.load({"builtin": True}, "estimator")
    found = []
    for world in PLACES:
        for title, name, options, reads in TRIED:
            made = method(name, host, options)
            for error in ERRORS if reads else ERRORS[:1]:
                played = Method(title, erring(made.credit, error), made.shape)
                found.append(
                    row(world, title, error if reads else None, measure(WORLDS[world], played, batches, seed=seed))
                )
    return found


def row(world: str, title: str, error: float | None, made: Measured | None) -> dict[str, Any]:
    """A line of the table."""
    assert made is not None, "each of them gives credit"
    return {
        "world": world,
        "method": title,
        "critic_error": error,
        "bias": [round(number, 3) for number in (max(made.interval[0], 0.0), made.interval[1])],
        "unbiased": made.unbiased,
        "noise": round(made.noise, 1),
        "turns": round(made.turns, 1),
    }


def main() -> None:
    """Measure, print, and keep."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batches", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    found = rows(chosen.batches, chosen.seed)
    print(f"{'world':<13}{'method':<10}{'critic':<14}{'bias, 95 %':<18}{'noise a turn':>12}")
    for each in found:
        error = each["critic_error"]
        critic = "none" if error is None else f"errs by {error}" if error else "exact"
        low, high = each["bias"]
        bias = f"{low:.2f} to {high:.2f}" + ("  unbiased" if each["unbiased"] else "")
        print(f"{each['world']:<13}{each['method']:<10}{critic:<14}{bias:<24}{each['noise']:>6}")
    if chosen.out:
        chosen.out.write_text(json.dumps({"batches": chosen.batches, "rows": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
