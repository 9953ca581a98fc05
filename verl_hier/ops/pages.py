"""A page of headings, sentences, tables and pictures, as HTML that needs no other file and as Markdown.

Whatever a recipe, a model or an environment wrote is text: it is escaped, and control characters and marks of direction
are shown by their codes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby

from verl_hier.text import visible

_HTML = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<style>
body {{ font: 1rem/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; padding: 0 1rem; }}
table {{ border-collapse: collapse; margin: 1rem 0; }}
td, th {{ border-bottom: 1px solid #8886; padding: .3rem .8rem .3rem 0; text-align: left; vertical-align: top; }}
td {{ overflow-wrap: anywhere; }}
pre {{ overflow-x: auto; }}
svg {{ background: white; height: auto; max-width: 100%; }}
</style>
</head>
<body>
<main>
<h1>{title}</h1>
{body}
</main>
</body>
</html>
"""


@dataclass(frozen=True)
class Heading:
    """A heading below that of the page."""

    words: str

    def html(self) -> str:
        """As HTML."""
        return f"<h2>{_inline(self.words)}</h2>"

    def markdown(self) -> str:
        """As Markdown."""
        return f"## {_marked(self.words)}"


@dataclass(frozen=True)
class Sentence:
    """A paragraph."""

    words: str

    def html(self) -> str:
        """As HTML."""
        return f"<p>{_inline(self.words)}</p>"

    def markdown(self) -> str:
        """As Markdown."""
        return _marked(self.words)


@dataclass(frozen=True)
class Table:
    """Rows of cells below a head."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]

    def html(self) -> str:
        """As HTML."""
        rows = ("".join(f"<td>{_inline(cell)}</td>" for cell in row) for row in self.rows)
        head = "".join(f"<th>{_text(name)}</th>" for name in self.head)
        return f"<table><tr>{head}</tr>\n" + "\n".join(f"<tr>{row}</tr>" for row in rows) + "</table>"

    def markdown(self) -> str:
        """As Markdown."""
        rows = [self.head, ["---"] * len(self.head), *self.rows]
        return "\n".join(f"| {' | '.join(map(_marked, row))} |" for row in rows)


@dataclass(frozen=True)
class Listing:
    """Lines that keep their shape."""

    lines: Sequence[str]

    def html(self) -> str:
        """As HTML."""
        return f"<pre>{_text(chr(10).join(self.lines))}</pre>"

    def markdown(self) -> str:
        """As Markdown."""
        text = visible("\n".join(self.lines))
        longest = max((len(list(run)) for sign, run in groupby(text) if sign == "`"), default=0)
        fence = "`" * max(3, longest + 1)
        return f"{fence}text\n{text}\n{fence}"


@dataclass(frozen=True)
class Picture:
    """An SVG, and the name of the file that the Markdown shows."""

    svg: str
    file: str
    says: str

    def html(self) -> str:
        """As HTML."""
        return self.svg[self.svg.index("<svg") :]

    def markdown(self) -> str:
        """As Markdown."""
        return f"![{_marked(self.says)}]({self.file})"


Block = Heading | Sentence | Table | Listing | Picture


def html(title: str, blocks: Iterable[Block]) -> str:
    """The page as HTML."""
    return _HTML.format(title=_text(title), body="\n".join(block.html() for block in blocks))


def markdown(title: str, blocks: Iterable[Block]) -> str:
    """The page as Markdown."""
    return "\n\n".join([f"# {_marked(title)}", *(block.markdown() for block in blocks)]) + "\n"


def _text(words: str) -> str:
    return escape(visible(words))


def _inline(words: str) -> str:
    """One line of HTML, with `code`."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", _text(words))


def _marked(words: str) -> str:
    """One line of Markdown in which no HTML, link, picture or cell begins; `code` stays code."""
    return re.sub(r"([\\\[\]|])", r"\\\1", _text(" ".join(words.split())))
