"""What a policy thinks and what it says: one reader of `<think>…</think>` for all environments.

Text outside of thoughts is said, and may hold actions, calls and answers; thoughts hold none. A thought that is not
closed was cut, so all that follows its opening is thought. A closing tag without an opening ends a thought that the
chat template has opened, so all before it is thought. Tags within the strings of a JSON object that begins a turn,
follows a thought or follows `<tool_call>` are characters of the string.

All functions are linear in the length of a text.
"""

from __future__ import annotations

import json
import re

THINK, UNTHINK = "<think>", "</think>"
CALL = "<tool_call>"
_TAG = re.compile(f"{THINK}|{UNTHINK}|{CALL}")
_OBJECT = re.compile(r"\s*(?=\{)")
_MOST_BROKEN = 100
"""Broken objects in a text, behind which no further one is looked for: each costs a look at all the text before it."""
_DECODER = json.JSONDecoder()


def said_spans(text: str) -> list[tuple[int, int]]:
    """Start and end of each part of a text that is said, in order and not empty."""
    found: list[tuple[int, int]] = []
    broken = 0

    def behind_object(place: int) -> int:
        nonlocal broken
        if broken == _MOST_BROKEN or not _OBJECT.match(text, place):
            return place
        end = json_object_end(text, place)
        broken += end is None
        return end or place

    begin, place = 0, behind_object(0)
    while tag := _TAG.search(text, place):
        if tag[0] == CALL:
            place = behind_object(tag.end())
            continue
        if tag[0] == THINK:
            if begin < tag.start():
                found.append((begin, tag.start()))
            end = text.find(UNTHINK, tag.end())
            begin = len(text) if end < 0 else end + len(UNTHINK)
        else:
            found.clear()
            begin = tag.end()
        place = behind_object(begin)
    return [*found, (begin, len(text))] if begin < len(text) else found


def without_thoughts(text: str) -> str:
    """What a text says, its parts joined by a space; empty where all of it is thought."""
    return " ".join(text[start:end] for start, end in said_spans(text))


def blank_thoughts(text: str) -> str:
    """The text with a space for each character of a thought, so that places in it are places in the text."""
    parts: list[str] = []
    place = 0
    for start, end in said_spans(text):
        parts += (" " * (start - place), text[start:end])
        place = end
    return "".join((*parts, " " * (len(text) - place)))


def split_thoughts(text: str) -> tuple[str, str]:
    """What a text thinks, without its tags, and what it says; both stripped, their parts joined by a space."""
    thought: list[str] = []
    place = 0
    for start, end in (*said_spans(text), (len(text), len(text))):
        thought.append(text[place:start].replace(THINK, " ").replace(UNTHINK, " ").strip())
        place = end
    return " ".join(filter(None, thought)), without_thoughts(text).strip()


def json_object_end(text: str, place: int) -> int | None:
    """Where the JSON object ends that begins at a place, behind white space; None where there is none."""
    opened = _OBJECT.match(text, place)
    try:
        return _DECODER.raw_decode(text, opened.end())[1] if opened else None
    except (ValueError, RecursionError):
        return None
