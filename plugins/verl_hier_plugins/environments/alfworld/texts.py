"""Short observations for small models: without articles and without repeating the command."""

from __future__ import annotations

import re

_OPEN = re.compile(r"The (.+?) is open\. In it, you see (.+)\.$")
_CLOSED = re.compile(r"The (.+?) is closed\.$")
_ON = re.compile(r"On the (.+?), you see (.+)\.$")
_FIRST = re.compile(r"^You (?:arrive at|open) .+?\. (?=\S)")
_ARTICLES = re.compile(r"\b(?:the|a|an|and|your|you|are|is) ", re.IGNORECASE)


def shorten(text: str) -> str:
    """A shortened observation: `fridge 1 open : apple 1 egg 1`, `pick up apple 1 from shelf 1`."""
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
