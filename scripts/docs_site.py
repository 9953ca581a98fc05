"""What the documentation site takes from outside of docs/, and the navigation that follows from the files."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
DOORS = {
    "index.md": "README.md",
    "contributing.md": "CONTRIBUTING.md",
    "changes.md": "CHANGELOG.md",
    "security.md": "SECURITY.md",
}
"""Pages of the site that are files of the repository's root."""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put every page of a folder into the navigation where its name stands for them."""
    assert config.nav is not None
    _filled(config.nav, Path(config.docs_dir))
    return config


def _filled(entries: list[Any], docs: Path) -> None:
    """Put the pages of a folder in the place of its name, on every level."""
    for entry in entries:
        for title, value in entry.items() if isinstance(entry, dict) else ():
            if isinstance(value, list):
                _filled(value, docs)
            elif value in ("methods", "environments"):
                entry[title] = list(section(docs, value))


def section(docs: Path, folder: str) -> list[Any]:
    """The page of a folder itself and then its pages by name."""
    pages = sorted(path.relative_to(docs).as_posix() for path in (docs / folder).glob("*.md"))
    first = f"{folder}/README.md" if f"{folder}/README.md" in pages else f"{folder}.md"
    return [first, *(page for page in pages if page != first)]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that lie in the repository's root."""
    for page, source in DOORS.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=links_of_the_site(text, ROOT, DOCS)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn the links of a page of docs/ that leave that folder, and work in the repository, into links of the site."""
    if page.file.src_uri in DOORS:
        return markdown
    folder = (DOCS / page.file.src_uri).parent
    return links_of_the_site(markdown, folder, folder)


def links_of_the_site(text: str, folder: Path, page_folder: Path) -> str:
    """`text`, whose links start from `folder`, for a page that the site has in `page_folder`.

    A link to a file of docs/, or to a file of the root that is a page of the site, points to that page. Other files of
    the repository are not part of the site, and a link to one becomes its words alone.
    """
    pages = {(ROOT / source).resolve(): DOCS / page for page, source in DOORS.items()}

    def link(found: re.Match[str]) -> str:
        words, path, anchor = found[1], found[2], found[3] or ""
        target = (folder / path).resolve()
        if not target.exists():
            return found[0]  # The strict build names the page that has a dead link.
        target = pages.get(target, target)
        if not target.is_relative_to(DOCS):
            return words
        return f"[{words}]({Path(os.path.relpath(target, page_folder)).as_posix()}{anchor})"

    return re.sub(r"\[([^\]]*)\]\((?!\w+:|#)([^)#\s]+)(#[^)]*)?\)", link, text)
