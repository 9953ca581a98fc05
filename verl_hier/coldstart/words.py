"""The words of the tiny model's language: entities with their number, plain words, numbers, and four signs."""

from __future__ import annotations

import re

PATTERN = r"[a-z]+ \d+|[a-z]+|\d+|[:;|]"
"""What one token is. The Python and the Rust regex engine read it alike."""

MARKER = re.compile(r"</?[a-z_][a-z_0-9]*>")
"""A tag, opening or closing; a token of its own."""

_COMPILED = re.compile(f"{MARKER.pattern}|{PATTERN}")


def split_words(text: str) -> list[str]:
    """Words and tags of a text, in order; everything else is dropped."""
    return _COMPILED.findall(text.lower())
