"""The files of an episode as a value: a change makes another workspace, which shares all other files with the first.

So a snapshot is a reference, a fork costs nothing, and no branch sees what another one writes. A folder is made of it
where something runs.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping

MOST_FILES = 64
MOST_CHARACTERS, MOST_IN_ALL = 20_000, 60_000
"""Of one file, and of all files and paths together: outcomes of thousands of runs are remembered with what was run."""
_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,40}")
_DEEPEST = 5


class BadChange(ValueError):
    """A change that a workspace does not take; its text says why."""


class Workspace(Mapping[str, str]):
    """Text files by their paths, `package/module.py`. Immutable.

    Attributes:
        digest: equal for equal files, and for no others.
    """

    __slots__ = ("_files", "digest")

    def __init__(self, files: Mapping[str, str]) -> None:
        self._files = dict(sorted(files.items()))
        self.digest = hashlib.blake2b(repr(self._files).encode(errors="surrogatepass"), digest_size=16).hexdigest()

    def __getitem__(self, path: str) -> str:
        return self._files[path]

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)

    def __hash__(self) -> int:
        return hash(self.digest)

    def with_file(self, path: str, text: str) -> Workspace:
        """The workspace in which a file has a text.

        Raises:
            BadChange: for a path that leads out of the workspace or is none, and where it would become too large.
        """
        if not is_path(path):
            raise BadChange("that is no path of a file here")
        if any(other.startswith(f"{path}/") or path.startswith(f"{other}/") for other in self._files):
            raise BadChange("a file cannot lie in a file")
        if len(text) > MOST_CHARACTERS:
            raise BadChange(f"a file has at most {MOST_CHARACTERS} characters")
        if path not in self._files and len(self._files) >= MOST_FILES:
            raise BadChange(f"there are at most {MOST_FILES} files")
        changed = Workspace({**self._files, path: text})
        if sum(map(len, (*changed, *changed.values()))) > MOST_IN_ALL:
            raise BadChange(f"all files have at most {MOST_IN_ALL} characters together")
        return changed

    def with_lines(self, path: str, first: int, last: int, lines: list[str]) -> Workspace:
        """The workspace in which the lines `first` to `last` of a file, counted from 1, are replaced.

        New lines whose first one is not indented are indented as the first line that they replace.

        Raises:
            BadChange: where there is no such file or line, or the file would become too long.
        """
        old = self._files.get(path, "").splitlines()
        if path not in self._files:
            raise BadChange("there is no such file")
        if not 1 <= first <= last <= len(old):
            raise BadChange(f"it has the lines 1 to {len(old)}" if old else "it has no lines")
        before = old[first - 1]
        indent = before[: len(before) - len(before.lstrip())]
        if indent and lines and lines[0] == lines[0].lstrip():
            lines = [f"{indent}{line}" if line else line for line in lines]
        return self.with_file(path, "".join(f"{line}\n" for line in [*old[: first - 1], *lines, *old[last:]]))


def is_path(path: str) -> bool:
    """Whether a text names a file within a workspace: plain names, no folder above, none that is hidden."""
    parts = path.split("/")
    return len(parts) <= _DEEPEST and all(_PART.fullmatch(part) for part in parts)
