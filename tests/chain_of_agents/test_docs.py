"""The page says what the code says: options, violations, followers."""

from __future__ import annotations

import re
from pathlib import Path

from verl_hier.host.describe import options_of
from verl_hier_plugins.workers.chain_of_agents.grammar import LEVELS, UNREADABLE, VIOLATIONS
from verl_hier_plugins.workers.chain_of_agents.worker import ChainOptions

PAGE = (Path(__file__).parents[2] / "docs/workers/chain_of_agents.md").read_text(encoding="utf-8")


def test_options():
    rows = re.findall(r"^\| `(\w+)` \| `(.*?)` \| `(.*?)` \| (.*) \|$", PAGE, re.MULTILINE)
    told = [(name, kind.replace("\\|", "|"), default, text) for name, kind, default, text in rows]
    assert told == [(o.name, o.type, o.default, o.text) for o in options_of(ChainOptions)]


def test_violations():
    table = PAGE.partition("| violation | |")[2].partition("\n\n")[0]
    assert dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", table, re.MULTILINE)) == VIOLATIONS


def test_every_role_and_mask_is_named():
    first = PAGE.partition("## ")[0]
    roles, masks = re.search(r"\| roles \| (.*) \|", first)[1], re.search(r"\| provides \| (.*) \|", first)[1]
    assert all(f"`{role}`" in roles for role in LEVELS)
    assert all(f"`{role}`" in masks for role in LEVELS if role != UNREADABLE)
