"""What the documentation site takes from outside of docs/, and the navigation that follows from the files."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

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
    for entry in config.nav:
        for title, value in entry.items():
            if value in ("methods", "environments"):
                entry[title] = list(section(Path(config.docs_dir), value))
    return config


def section(docs: Path, folder: str) -> list[Any]:
    """The page of a folder itself and then its pages by name."""
    pages = sorted(path.relative_to(docs).as_posix() for path in (docs / folder).glob("*.md"))
    first = f"{folder}/README.md" if f"{folder}/README.md" in pages else f"{folder}.md"
    return [first, *(page for page in pages if page != first)]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that lie in the repository's root; their links to docs/ become links of the site."""
    for page, source in DOORS.items():
        text = (ROOT / source).read_text(encoding="utf-8").replace("](docs/", "](")
        for name, root in DOORS.items():
            text = text.replace(f"]({root})", f"]({name})")
        # Other files of the repository are named there and not part of the site.
        text = re.sub(r"\[([^\]]*)\]\((?!\w+:|#)([^)#]*)\)", without_foreign_links, text)
        files.append(File.generated(config, page, content=text))
    return files


def without_foreign_links(link: re.Match[str]) -> str:
    """A Markdown link, or its words alone where the site does not have what it points to."""
    return link[0] if link[2] in DOORS or (DOCS / link[2]).exists() else link[1]
