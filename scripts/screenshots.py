"""Take the pictures of docs/viewer.md, in both themes: of a stored step of the quickstart, in Chromium.

python scripts/screenshots.py
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.fixtures.browser import browser, tab  # noqa: E402
from verl_hier.cli.view import book_of  # noqa: E402
from verl_hier.ops.stored import Stored  # noqa: E402
from verl_hier.viewer.html import LARGEST, page  # noqa: E402

OUT = ROOT / "docs" / "viewer"
SIZE = {"width": 1200, "height": 760}
PLACES = {
    "overview": "#/",
    "groups": "#/groups",
    "group": "#/group/{step}/{uid}/20",
    "path": "#/group/{step}/{uid}/0/path",
    "why": "#/group/{step}/{uid}/58/why",
}
"""Name of a picture to what it shows; the turns are those of the example."""


def main() -> None:
    book = book_of(Stored.at(ROOT / "docs" / "example_rollout.jsonl.gz"), ["himac", "gigpo"])
    (group,) = book.overview()["groups"]
    OUT.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, browser() as started:
        file = Path(folder) / "page.html"
        file.write_text(page("quickstart", book.pages(LARGEST)), encoding="utf-8")
        for name, place in PLACES.items():
            for theme in ("light", "dark"):
                with tab(started, file.as_uri() + place.format(**group), color_scheme=theme, viewport=SIZE) as seen:
                    seen.page.wait_for_timeout(300)  # until the charts are painted
                    if name in ("path", "why"):
                        seen.page.wait_for_selector(f".{name}")
                        seen.page.locator(f".{name}").scroll_into_view_if_needed()
                    seen.page.screenshot(path=OUT / f"{name}-{theme}.png")


if __name__ == "__main__":
    main()
