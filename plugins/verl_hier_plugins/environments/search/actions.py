"""The format of actions: plain words (`search lake`) or XML tags (`<search>lake</search>`); both are understood."""

from __future__ import annotations

from dataclasses import dataclass

from verl_hier.environments.thoughts import without_thoughts

PLAIN = {"search": "local", "web": "web", "web_search": "web", "answer": "answer"}
TAGS = {"search": "local", "web_search": "web", "answer": "answer"}
LONGEST = 1000
"""Characters of a query or an answer that are used, so that degenerate repetitions cost nothing."""


@dataclass(frozen=True)
class Action:
    """A search in a collection, or the answer.

    Attributes:
        kind: `local`, `web` or `answer`.
        text: the query or the answer.
    """

    kind: str
    text: str


def parse_action(text: str) -> Action | None:
    """The action of a turn, None when there is none.

    Thoughts are ignored. The first complete pair of tags counts, because the policy wrote the rest
    before it had an answer. Without tags the first word decides. Linear in the length of the text.
    """
    visible = without_thoughts(text)
    pairs = [found for tag in TAGS if (found := _pair(visible, tag)) is not None]
    if pairs:
        _, tag, inside = min(pairs)
        return _action(TAGS[tag], inside)
    word, _, rest = visible.strip().partition(" ")
    kind = PLAIN.get(word.lower())
    return _action(kind, rest) if kind is not None else None


def write_action(action: Action, form: str) -> str:
    """An action in the form `plain` or `tags`."""
    if form == "tags":
        tag = next(tag for tag, kind in TAGS.items() if kind == action.kind)
        return f"<{tag}>{action.text}</{tag}>"
    return f"{next(word for word, kind in PLAIN.items() if kind == action.kind)} {action.text}"


def describe(form: str, web: bool) -> str:
    """One sentence that explains the actions.

    Args:
        form: `plain` or `tags`.
        web: whether the collection `web` has documents.
    """
    examples = {"local": "words", "web": "words", "answer": "text"}
    forms = {kind: write_action(Action(kind, f"some {word}"), form) for kind, word in examples.items()}
    elsewhere = f" or `{forms['web']}` to look elsewhere" if web else ""
    return f"Say `{forms['local']}` to look in the library{elsewhere}, and `{forms['answer']}` to end."


def _action(kind: str, text: str) -> Action | None:
    short = " ".join(text[: 2 * LONGEST].split())[:LONGEST]
    return Action(kind, short) if short else None


def _pair(text: str, tag: str) -> tuple[int, str, str] | None:
    """Position and content of the first complete pair of a tag."""
    start = text.find(f"<{tag}>")
    inside = start + len(tag) + 2
    end = text.find(f"</{tag}>", inside) if start >= 0 else -1
    return (start, tag, text[inside:end]) if end >= 0 else None
