"""Scores of an answer.

Exact match and F1 compare normalised words, as in SQuAD (arXiv 1606.05250) and HotpotQA: they see neither sign nor
decimal point, so `-5` is `5`, and nothing is left of `A`. Answers that are numbers have `number`.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Iterable
from fractions import Fraction

from verl_hier.environments.math_answers import math_verify
from verl_hier.environments.numbers import LONGEST, last_number, number_of
from verl_hier.environments.question_rows import boxed
from verl_hier.environments.thoughts import without_thoughts

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_TAGGED = re.compile(r"<answer>([^<]*)</answer>")
LONGEST_STATED = 20_000
"""Characters at the end of a text in which its answer is looked for."""
CLOSED = ("yes", "no", "noanswer")
"""Answers without partial credit (HotpotQA's evaluation)."""


def normalise(text: str) -> str:
    """Lower case, without ASCII punctuation and articles, one space between words."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(answer: str, truths: Iterable[str]) -> bool:
    """Whether the answer equals one of the true answers; one of which nothing remains, such as `the`, never does."""
    given = normalise(answer)
    return bool(given) and given in {normalise(truth) for truth in truths}


def number(answer: str, truths: Iterable[str]) -> bool:
    """Whether the last number of the answer is the last number of one of the true answers, in any notation."""
    given = _number(answer)
    return given is not None and any(given == _number(truth) for truth in truths)


def _number(text: str) -> Fraction | None:
    """The number that a text is, as `- 5` or `12 000`, and otherwise the last one in it."""
    whole = number_of(text) if len(text) <= LONGEST else None
    return last_number(text) if whole is None else whole


def number_or_words(answer: str, truths: Iterable[str]) -> bool:
    """Whether the answer is one of the true ones: those that are numbers by `number`, others by `exact_match`, and
    those of which normalisation leaves nothing, such as `A` or `+`, as they are written."""
    return any(_same(answer, truth) for truth in truths)


def _same(answer: str, truth: str) -> bool:
    if number_of(truth) is not None:
        return number(answer, (truth,))
    if not normalise(truth):
        given, true = answer.strip(), truth.strip()
        return bool(true) and given in ((true, f"{true}.") if true.isalnum() else (true,))
    return exact_match(answer, (truth,))


def equal_form(answer: str) -> str:
    """An answer in a form in which equal answers are equal: a number in lowest terms, normalised words, or, where
    nothing is left of these, as it is written."""
    number = number_of(answer) if len(answer) <= LONGEST else None
    return str(number) if number is not None else normalise(answer) or answer.strip()


def stated_answer(text: str) -> str | None:
    """The answer that a text says it gives, as `equal_form` has it: in `<answer>` tags, in the last `\\boxed{}`, or
    behind `####` (GSM8K); None where it says none. Thoughts hold no answer."""
    said = without_thoughts(text)[-LONGEST_STATED:]
    tagged, marked = _TAGGED.findall(said), said.rpartition("####")
    found = tagged[-1] if tagged else boxed(said) or (marked[2].strip().partition("\n")[0] if marked[1] else "")
    return equal_form(found) or None


MATCHES: dict[str, Callable[[str, Iterable[str]], bool]] = {
    "exact_match": exact_match,
    "number": number,
    "number_or_words": number_or_words,
    "math_verify": math_verify,
}
"""Ways to tell whether an answer is right, by the name that a recipe gives them."""


def unfit(scorer: str, truth: str) -> str:
    """Why a scorer cannot tell whether an answer is this true one, with what to do; empty where it can.

    Args:
        scorer: a name of `MATCHES`, or `f1`.
        truth: the true answer.
    """
    other = "take the scorer `number`, or `number_or_words` where some answers are words"
    if not truth.strip():
        return "is empty"
    if scorer in ("exact_match", "f1"):
        if number_of(truth) is not None:
            return f"is a number, of which {scorer} sees neither sign nor decimal point; {other}"
        if not normalise(truth):
            return (
                f"is one of which {scorer} leaves nothing, because it drops punctuation and articles, and answers have "
                "to be texts, none of them empty; take the scorer `number_or_words`, which keeps it"
            )
    if scorer == "number" and last_number(truth) is None:
        return "has no number; take the scorer `number_or_words` where some answers are words"
    return ""


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
