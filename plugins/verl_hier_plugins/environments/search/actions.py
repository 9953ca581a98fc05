"""The language of actions: plain words (`search lake`) or XML tags (`<search>lake</search>`); both are understood."""

from __future__ import annotations

from dataclasses import dataclass

PLAIN = {"search": "local", "web": "web", "web_search": "web", "answer": "answer"}
TAGS = {"search": "local", "web_search": "web", "answer": "answer"}
LONGEST = 1000
"""Characters of a query or an answer that count; what a model repeats a thousand times costs nothing."""


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

    What stands inside `<think>` is left out. The first complete tag pair counts: whatever the policy wrote after it, it
    had no answer yet. Without any, the first word decides. Linear in the length of the text.
    """
    said = _without_thoughts(text)
    pairs = [found for tag in TAGS if (found := _pair(said, tag)) is not None]
    if pairs:
        _, tag, inside = min(pairs)
        return _action(TAGS[tag], inside)
    word, _, rest = said.strip().partition(" ")
    kind = PLAIN.get(word.lower())
    return _action(kind, rest) if kind is not None else None


def write_action(action: Action, form: str) -> str:
    """An action in the form `plain` or `tags`."""
    if form == "tags":
        tag = next(tag for tag, kind in TAGS.items() if kind == action.kind)
        return f"<{tag}>{action.text}</{tag}>"
    return f"{next(word for word, kind in PLAIN.items() if kind == action.kind)} {action.text}"


def describe(form: str, web: bool) -> str:
    """One sentence on how to act.

    Args:
        form: `plain` or `tags`.
        web: whether there is anything to find by `web`.
    """
    examples = {"local": "words", "web": "words", "answer": "text"}
    told = {kind: write_action(Action(kind, f"some {word}"), form) for kind, word in examples.items()}
    elsewhere = f" or `{told['web']}` to look elsewhere" if web else ""
    return f"Say `{told['local']}` to look in the library{elsewhere}, and `{told['answer']}` to end."


def _action(kind: str, text: str) -> Action | None:
    short = " ".join(text[: 2 * LONGEST].split())[:LONGEST]
    return Action(kind, short) if short else None


def _pair(text: str, tag: str) -> tuple[int, str, str] | None:
    """Place and inside of the first complete pair of a tag."""
    start = text.find(f"<{tag}>")
    inside = start + len(tag) + 2
    end = text.find(f"</{tag}>", inside) if start >= 0 else -1
    return (start, tag, text[inside:end]) if end >= 0 else None


def _without_thoughts(text: str) -> str:
    kept: list[str] = []
    position = 0
    while (start := text.find("<think>", position)) >= 0:
        kept.append(text[position:start])
        end = text.find("</think>", start)
        if end < 0:
            return " ".join(kept)
        position = end + len("</think>")
    return " ".join((*kept, text[position:]))
