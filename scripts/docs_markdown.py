"""What the generators of the documentation share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence


def cell(text: str) -> str:
    """Text for a table cell."""
    return " ".join(text.split()).replace("|", "\\|")


def table(head: Sequence[str], *rows: Sequence[str]) -> Iterator[str]:
    """The lines of a Markdown table."""
    yield "| " + " | ".join(head) + " |"
    yield "|" + "---|" * len(head)
    for row in rows:
        yield "| " + " | ".join(row) + " |"
