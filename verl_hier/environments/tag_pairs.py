"""Tags of a turn as released readers of this field find them; all functions are linear in the length of a text."""

from __future__ import annotations

import string

_SMALL = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)


def small(text: str) -> str:
    """The text with small ASCII letters; every place in it is the same place in the text."""
    return text.translate(_SMALL)


def pairs(text: str, tag: str) -> list[tuple[int, int]]:
    """[start, stop) of each `<tag>…</tag>`, tags included: from an opening to the first closing behind it."""
    opening, closing = f"<{tag}>", f"</{tag}>"
    found: list[tuple[int, int]] = []
    place = 0
    while (start := text.find(opening, place)) >= 0 and (stop := text.find(closing, start + len(opening))) >= 0:
        place = stop + len(closing)
        found.append((start, place))
    return found


def contents(text: str, tag: str) -> list[str]:
    """What stands in each `<tag>…</tag>` of `pairs`, in order."""
    return [text[start + len(tag) + 2 : stop - len(tag) - 3] for start, stop in pairs(text, tag)]


def contents_in_lines(text: str, tag: str) -> list[str]:
    """As `contents`, for tags that are opened and closed in one line."""
    return [content for line in text.split("\n") for content in contents(line, tag)]


def has_chinese(text: str) -> bool:
    """Whether there is a sign of the block of common Chinese characters (U+4E00 to U+9FFF)."""
    return any("\u4e00" <= sign <= "\u9fff" for sign in text)


def outside_of_brackets(text: str) -> str:
    """The text without what stands between `<` and the next `>` of the same line."""
    kept: list[str] = []
    for line in text.split("\n"):
        place = 0
        while (start := line.find("<", place)) >= 0 and (stop := line.find(">", start)) >= 0:
            kept.append(line[place:start])
            place = stop + 1
        kept.append(line[place:])
    return "\n".join(kept)
