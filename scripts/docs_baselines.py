"""The tables of what policies of one line win, from what `verl-hier env NAME --baselines --out` has measured."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from docs_markdown import table

from verl_hier.environments.baselines import MARGIN, Measured

FILE = Path(__file__).resolve().parents[1] / "docs" / "baselines.json"
LONGEST = 40
"""Characters of a constant that are shown."""


def baselines(environment: str) -> Iterator[str]:
    """One environment: a row for each family and difficulty, bold where a policy wins much more than chance."""
    found = {name: Measured(**one) for name, one in json.loads(FILE.read_text("utf-8"))[environment].items()}
    policies = list(dict.fromkeys(policy for one in found.values() for policy in one.won))
    rows = []
    for name, one in found.items():
        text = one.best.get("constant", "")
        best = f"`{text[:LONGEST]}`{' …' if len(text) > LONGEST else ''}" if text else ""
        shares = [f"{one.won[policy]:.0%}" if policy in one.won else "" for policy in policies]
        rows.append((f"**{name}**" if one.excess > MARGIN else name, f"{one.chance:.0%}", *shares, best))
    yield from table(("tasks", "chance", *policies, "best constant"), *rows)


BLOCKS = {"baselines": baselines}
