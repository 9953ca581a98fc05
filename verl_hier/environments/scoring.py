"""Scores of an answer: exact match and F1 on normalised words, as in SQuAD (arXiv 1606.05250) and HotpotQA."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Iterable

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")
CLOSED = ("yes", "no", "noanswer")
"""Answers without partial credit (HotpotQA's evaluation)."""


def normalise(text: str) -> str:
    """Lower case, without ASCII punctuation and articles, one space between words."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(answer: str, truths: Iterable[str]) -> bool:
    """Whether the answer equals one of the true answers; one of which nothing remains, such as `the`, never does."""
    given = normalise(answer)
    return bool(given) and given in {normalise(truth) for truth in truths}


def f1(answer: str, truths: Iterable[str]) -> float:
    """Harmonic mean of precision and recall of words, for the best matching true answer."""
    return max((_f1(normalise(answer), normalise(truth)) for truth in truths), default=0.0)


def _f1(answer: str, truth: str) -> float:
    if answer == truth:
        return float(bool(answer))
    if answer in CLOSED or truth in CLOSED:
        return 0.0
    given, true = answer.split(), truth.split()
    common = sum((Counter(given) & Counter(true)).values())
    return 2 * common / (len(given) + len(true))
