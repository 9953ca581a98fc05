"""The page as HTML: its own script and style, allowed by their hashes, and nothing else."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable
from html import escape
from pathlib import Path

BUNDLE = Path(__file__).parent / "bundle"
EXAMPLE = Path(__file__).parent / "example"
"""A part of a run of the quickstart, which `scripts/example.py` chose."""
LARGEST = 4_500_000
"""Characters of the rollouts in a page of its own."""
_HTML = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<link rel="icon" href="data:,">
<style>{style}</style>
</head>
<body>
<div id="page"></div>
{data}<script>{script}</script>
</body>
</html>
"""


def page(title: str, pages: Iterable[tuple[str, str]] = (), source: str = "'none'") -> str:
    """The page.

    Args:
        title: of the window.
        pages: names and texts of JSON that it holds; without them it asks the server that it came from.
        source: what it may connect to: nothing, or `'self'`.
    """
    script, style = ((BUNDLE / name).read_text(encoding="utf-8") for name in ("page.js", "page.css"))
    data = "".join(
        f'<script type="application/json" data-name="{escape(name, quote=True)}">{_inert(text)}</script>\n'
        for name, text in pages
    )
    return _HTML.format(policy=policy(source), title=escape(title), style=style, script=script, data=data)


def policy(source: str = "'none'") -> str:
    """The content security policy: the page's script and style by their hashes, and no other source of anything."""
    script, style = (_hash((BUNDLE / name).read_bytes()) for name in ("page.js", "page.css"))
    return (
        f"default-src 'none'; script-src '{script}'; style-src '{style}'; style-src-attr 'none'; img-src data:; "
        f"connect-src {source}; base-uri 'none'; form-action 'none'"
    )


def _hash(content: bytes) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(content).digest()).decode()}"


def _inert(text: str) -> str:
    """JSON within HTML: nothing in it ends the element, or is a line end to a script."""
    for sign, code in (
        ("<", "\\u003c"),
        (">", "\\u003e"),
        ("&", "\\u0026"),
        ("\u2028", "\\u2028"),
        ("\u2029", "\\u2029"),
    ):
        text = text.replace(sign, code)
    return text
