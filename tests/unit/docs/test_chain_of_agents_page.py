"""The page says what the code says: violations, roles, followers."""

from __future__ import annotations

import re
from pathlib import Path

from verl_hier_plugins.workers.chain_of_agents.grammar import LEVELS, UNREADABLE, VIOLATIONS

PAGE = (Path(__file__).parents[3] / "docs/methods/chain_of_agents.md").read_text(encoding="utf-8")


def test_violations():
    table = PAGE.partition("| violation |")[2].partition("\n\n")[0]
    assert dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", table, re.MULTILINE)) == VIOLATIONS


def test_every_role_and_mask_is_named():
    roles = re.search(r"^\| roles \| (.*) \|$", PAGE, re.MULTILINE)[1]
    masks = re.search(r"^\| fills the columns \| (.*) \|$", PAGE, re.MULTILINE)[1]
    assert all(f"`{role}`" in roles for role in LEVELS)
    assert all(f"`tokens.{role}`" in masks for role in LEVELS if role != UNREADABLE)
