"""Every code block of README.md, CONTRIBUTING.md and docs/ runs, or says why it does not.

What a comment above a block can say is described in tests/fixtures/code_blocks.py.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.code_blocks import blocks, inline_commands
from tests.fixtures.host_fixtures import fresh_host  # noqa: F401 - plugins of one page are not those of another
from tests.fixtures.page_player import ROOT, PagePlayer
from tests.fixtures.tiers import spread

FIRST = ("README.md", "docs/write_an_estimator.md", "docs/methods/himac.md")
"""Pages that every change plays; the others are slow together."""


def paged(pages: Iterable[Path]) -> list[Any]:
    return [
        pytest.param(page, id=name, marks=pytest.mark.slow if name not in FIRST else ())
        for page in pages
        for name in (str(page.relative_to(ROOT)),)
    ]


OF_PARTS = [page for part in ("methods", "environments") for page in paged(sorted((ROOT / "docs" / part).glob("*.md")))]
"""They are made alike: some of them speak for the others."""
PAGES = [
    *paged([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]),
    *spread(len(OF_PARTS) // 3, OF_PARTS),
]


@pytest.fixture
def player(tmp_path: Path, byte_model: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PagePlayer]:
    (tmp_path / "model").symlink_to(byte_model)
    monkeypatch.chdir(tmp_path)
    yield PagePlayer(tmp_path, monkeypatch)
    for name, module in list(sys.modules.items()):
        if str(tmp_path) in str(getattr(module, "__file__", "")):
            del sys.modules[name]


@pytest.mark.parametrize("page", PAGES)
def test_the_blocks_of_a_page(page: Path, player: PagePlayer) -> None:
    for block in blocks(page):
        player.play(block)
    for command in inline_commands(page):
        player.command(command, whole=False)
