#!/usr/bin/env python
"""Check every pair of a method and an environment, and record which are refused and why.

python scripts/pairs.py               # writes verl_hier/recipe/refused_pairs.yaml; some minutes
python scripts/pairs.py --sample N    # checks N random pairs against the record, and writes nothing
"""

from __future__ import annotations

import argparse
import os
import random
import sys
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import yaml

from verl_hier.recipe import pairs
from verl_hier.recipe.check import refusal

RECORD = Path(pairs.__file__).with_name(pairs.REFUSED)
HEAD = "# Pairs of a method and an environment that are refused, and why. Written by scripts/pairs.py.\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=int)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if options.sample is None:
        found = verdicts(list(pairs.by_name()))
        text = yaml.safe_dump({name: why for name, why in found.items() if why}, width=120, allow_unicode=True)
        RECORD.write_text(HEAD + text, encoding="utf-8")
        print(f"{sum(not why for why in found.values())} of {len(found)} pairs compose")
        return 0
    names = random.Random(options.seed).sample(sorted(pairs.by_name()), options.sample)
    wrong = {name: why for name, why in verdicts(names).items() if why != pairs.refused().get(name, "")}
    for name, why in wrong.items():
        print(f"{name}: recorded {pairs.refused().get(name, '')!r}, found {why!r}")
    return bool(wrong)


def verdicts(names: Iterable[str]) -> dict[str, str]:
    """Why each pair is refused; "" for one that is not."""
    names = list(names)
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        return dict(zip(names, pool.map(refusal, names, chunksize=15), strict=True))


if __name__ == "__main__":
    sys.exit(main())
