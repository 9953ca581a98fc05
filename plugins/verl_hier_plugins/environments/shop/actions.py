"""The two actions, `search[words]` and `click[what]`; `search words` and `click what` mean the same."""

from __future__ import annotations

import re

from verl_hier.environments.thoughts import without_thoughts

LONGEST = 500
"""Characters of a query or of what is clicked that are used, so that degenerate repetitions cost nothing."""
_ACTION = re.compile(r"(search|click)(?:\s*\[(.*)\]|\s+(.+))", re.DOTALL)


def parse_action(text: str) -> tuple[str, str] | None:
    """`search` or `click`, and its words in lower case with single spaces; None when a text says neither."""
    found = _ACTION.fullmatch(without_thoughts(text).strip()[: 2 * LONGEST].lower())
    words = " ".join((found[2] or found[3] or "").split())[:LONGEST] if found else ""
    return (found[1], words) if found and words else None


def write_action(verb: str, words: str, form: str) -> str:
    """An action in the form `brackets` or `plain`."""
    return f"{verb}[{words}]" if form == "brackets" else f"{verb} {plain(words)}"


def plain(words: str) -> str:
    """Words by which what is clicked is recognised: `< prev` is also `prev`."""
    return " ".join(words.replace("<", " ").replace(">", " ").split()).lower()
