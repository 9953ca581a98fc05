"""Shorter observations for small models: the same content without articles and without what the command just said."""

from __future__ import annotations

import re
from collections.abc import Sequence

_OPEN = re.compile(r"The (.+?) is open\. In it, you see (.+)\.$")
_CLOSED = re.compile(r"The (.+?) is closed\.$")
_ON = re.compile(r"On the (.+?), you see (.+)\.$")
_FIRST = re.compile(r"^You (?:arrive at|open) .+?\. (?=\S)")
_ARTICLES = re.compile(r"\b(?:the|a|an|and|your|you|are|is) ", re.IGNORECASE)


def shorten(text: str) -> str:
    """A step's text in few words: `fridge 1 open : apple 1 egg 1`, `pick up apple 1 from shelf 1`."""
    text = _FIRST.sub("", text.strip())
    for pattern, form in ((_OPEN, "{} open : {}"), (_ON, "{} : {}")):
        found = pattern.match(text)
        if found:
            return form.format(found.group(1), _items(found.group(2)))
    found = _CLOSED.match(text)
    if found:
        return f"{found.group(1)} closed"
    text = _ARTICLES.sub("", text.replace(",", ""))
    return " ".join(text.rstrip(".").split()).lower()


def _items(text: str) -> str:
    return " ".join(_ARTICLES.sub("", text.replace(",", "")).split())


def with_admissible(text: str, commands: Sequence[str]) -> str:
    """An observation that ends with what can be done now."""
    return f"{text}\nYou can: {'; '.join(commands)}"
