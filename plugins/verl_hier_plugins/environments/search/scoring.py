"""How right an answer is: exact match and F1 on normalised words, as SQuAD (arXiv 1606.05250) and HotpotQA score."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Iterable

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")
CLOSED = ("yes", "no", "noanswer")
"""Answers that share no credit with a longer one (HotpotQA's evaluation)."""


def normalise(text: str) -> str:
    """Lower case, without ASCII punctuation and articles, one space between words."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(answer: str, truths: Iterable[str]) -> bool:
    """Whether the answer is one of the true ones."""
    return normalise(answer) in {normalise(truth) for truth in truths}


def f1(answer: str, truths: Iterable[str]) -> float:
    """Harmonic mean of precision and recall of words, with the true answer that fits best."""
    return max((_f1(normalise(answer), normalise(truth)) for truth in truths), default=0.0)


def _f1(answer: str, truth: str) -> float:
    if answer == truth:
        return 1.0
    if answer in CLOSED or truth in CLOSED:
        return 0.0
    said, true = answer.split(), truth.split()
    common = sum((Counter(said) & Counter(true)).values())
    return 2 * common / (len(said) + len(true))
