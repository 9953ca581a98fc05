"""Guards against questions that only look like ones: without a tag, too short or long, or copied from a reference."""

from __future__ import annotations

import re

_WORD = re.compile(r"\w+")
READ = 8000
"""Characters of a text that are compared; longer ones are no questions anyway."""


def words_of(text: str) -> tuple[str, ...]:
    """The words of a text in lower case: two questions with the same words are one."""
    return tuple(_WORD.findall(text[:READ].lower()))


def likeness(left: str, right: str) -> float:
    """Share of the words of both texts that each of them has, from 0 to 1 (Jaccard)."""
    return shared(set(words_of(left)), set(words_of(right)))


def shared(mine: set[str], other: set[str]) -> float:
    """The same of the words of two texts."""
    return len(mine & other) / len(mine | other) if mine or other else 0.0


def fault_of(question: str | None, reference: str, shortest: int, longest: int, similar: float) -> str | None:
    """What is wrong with a proposed question, as the name under which it is counted; None when nothing is.

    Args:
        question: the text inside the tag; None without one.
        reference: the question that the proposer was shown; may be empty.
        shortest, longest: words, and characters.
        similar: likeness from which on it is a copy of its reference.
    """
    if question is None:
        return "no_question"
    if len(question) > longest:
        return "long_question"
    words = words_of(question)
    if len(words) < shortest:
        return "short_question"
    if reference and (words == words_of(reference) or likeness(question, reference) > similar):
        return "copied_question"
    return None


def score_of(text: str | None, lowest: float, highest: float) -> float | None:
    """The verdict of a judge on [0, 1]: the number that the text inside its tag is; None when none, or outside."""
    if text is None or len(text) > 20:
        return None
    try:
        number = float(text)
    except ValueError:
        return None
    return (number - lowest) / (highest - lowest) if lowest <= number <= highest else None
