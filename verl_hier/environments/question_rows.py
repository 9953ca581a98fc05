"""Questions and true answers in the columns that public data sets have.

| data | question | answers |
|---|---|---|
| HotpotQA, NQ, GSM8K | `question` | `answer`, a text or a list of texts |
| TriviaQA | `question` | `answer.value` and `answer.aliases` |
| FlashRAG, Search-R1 | `question` | `golden_answers` |
| MATH | `problem` | what `\\boxed{}` holds in `solution` |
| verl's own | `extra_info.question`, or the user's last message in `prompt` | `reward_model.ground_truth` |
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

COLUMNS = (
    *("question", "problem", "prompt", "extra_info"),
    *("golden_answers", "answer", "solution", "reward_model"),
)
"""The columns that are read."""
BOXED = "\\boxed{"


def question_of(row: Mapping[str, Any]) -> str:
    """The question of a row, without white space around it; empty when the row has none."""
    known = row.get("extra_info")
    places = (row.get("question"), row.get("problem"), known.get("question") if isinstance(known, Mapping) else None)
    found = next((text for text in (*places, _asked(row.get("prompt"))) if isinstance(text, str) and text.strip()), "")
    return found.strip()


def answers_of(row: Mapping[str, Any]) -> list[str]:
    """The true answers of a row, each once and without those that are empty; no answers when the row has none."""
    model, solution = row.get("reward_model"), row.get("solution")
    places = (
        row.get("golden_answers"),
        row.get("answer"),
        boxed(solution) if isinstance(solution, str) else None,
        model.get("ground_truth") if isinstance(model, Mapping) else None,
    )
    found = (_texts(place) for place in places)
    return next((texts for texts in found if texts), [])


def boxed(solution: str) -> str:
    """What the last `\\boxed{}` of a solution holds; empty when there is none, or it has no end."""
    start = solution.rfind(BOXED)
    if start < 0:
        return ""
    depth = 1
    for place in range(start + len(BOXED), len(solution)):
        depth += {"{": 1, "}": -1}.get(solution[place], 0)
        if depth == 0:
            return solution[start + len(BOXED) : place].strip()
    return ""


def _texts(value: Any) -> list[str]:
    """Answers as texts: of one, of a list, or of a mapping as TriviaQA and Search-R1 have it."""
    if isinstance(value, Mapping):
        return _texts([*_texts(value.get("target")), *_texts(value.get("value")), *_texts(value.get("aliases"))])
    if isinstance(value, list | tuple):
        return list(dict.fromkeys(text for each in value for text in _texts(each)))
    number = isinstance(value, int | float) and not isinstance(value, bool)
    text = str(value).strip() if number or isinstance(value, str) else ""
    return [text] if text else []


def _asked(prompt: Any) -> str | None:
    """The last message of the user in a prompt of verl's form."""
    messages = prompt if isinstance(prompt, list) else []
    said = [each.get("content") for each in messages if isinstance(each, Mapping) and each.get("role") == "user"]
    return said[-1] if said else None
