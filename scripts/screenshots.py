"""Take the pictures of docs/viewer.md, in both themes and in Chromium: of a stored step of the quickstart, and of the
metrics of six runs that `scripts/bench/updates.py` made.

python scripts/screenshots.py
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.fixtures.browser import browser, tab  # noqa: E402
from tests.fixtures.written_runs import write_run  # noqa: E402
from verl_hier.cli.view import book_of  # noqa: E402
from verl_hier.ops import compare_page  # noqa: E402
from verl_hier.ops.compare import compare  # noqa: E402
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


def compared() -> str:
    """The page of `verl-hier compare` of the runs in docs/viewer/runs.json."""
    runs = [
        write_run(Path("runs") / run["recipe"] / str(number), run["steps"], run["recipe"], run["overrides"])
        for number, run in enumerate(json.loads((OUT / "runs.json").read_text(encoding="utf-8")))
    ]
    return compare_page.page(compare(runs))


def views(folder: Path) -> Iterator[tuple[str, str]]:
    """Name of each picture, and the address that it is taken of."""
    book = book_of(Stored.at(ROOT / "docs" / "example_rollout.jsonl.gz"), ["himac", "gigpo"])
    (group,) = book.overview()["groups"]
    (folder / "page.html").write_text(page("quickstart", book.pages(LARGEST)), encoding="utf-8")
    (folder / "compare.html").write_text(compared(), encoding="utf-8")
    for name, place in PLACES.items():
        yield name, (folder / "page.html").as_uri() + place.format(**group)
    yield "compare", (folder / "compare.html").as_uri()


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, browser() as started:
        os.chdir(folder)  # the page names the folders of runs as they were given
        for name, address in views(Path(folder)):
            for theme in ("light", "dark"):
                with tab(started, address, color_scheme=theme, viewport=SIZE) as seen:
                    seen.page.wait_for_timeout(300)  # until the charts are painted
                    if name in ("path", "why"):
                        seen.page.wait_for_selector(f".{name}")
                        seen.page.locator(f".{name}").scroll_into_view_if_needed()
                    seen.page.screenshot(path=OUT / f"{name}-{theme}.png")


if __name__ == "__main__":
    main()
