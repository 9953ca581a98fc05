"""Why a run of verl ended, read from what its processes have printed.

The driver prints the traceback that ended it last. Ray puts the tracebacks of other processes into that of the driver,
and `(name pid=N)` before each line that another process has printed.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from verl_hier.errors import HierError, is_users, shown_path

KEPT = 20_000
"""Lines of the end of a log that are looked at."""
LONGEST = 600
"""Characters of a cause."""
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_PREFIX = re.compile(r"\((?P<source>[^()]*\bpid=\d+[^()]*)\) ?")
_REPEATED = re.compile(r"\s*\[repeated \d+x across [^\]]*\](?:\s*\(Ray deduplicates.*)?$")
_FRAME = re.compile(r'\s*File "(?P<file>[^"]+)", line (?P<line>\d+)')
_GROUP = re.compile(r"^(?: *[|+] )+")
_ERROR = re.compile(r"(?P<type>(?:\w+\.)+\w+|[A-Z]\w*)(?:\((?P<cause>\w+)\))?(?:: ?(?P<text>.*))?$")
_OURS = re.compile(r"verl_hier\.errors\.\w+: (?P<text>.+)")
_GONE = ("ActorDied", "ActorUnavailable", "WorkerCrashed", "OutOfMemory")
_EXITED = re.compile(r"exits with an exit code (?P<code>\d+)")
_CLASS = re.compile(r"class_name: (?P<name>\w+)")
_KINDS: tuple[type[HierError], ...] = (HierError, *HierError.__subclasses__())
_PLAIN = {kind.__name__ for kind in _KINDS}
_CHAINED = ("The above exception was the direct cause", "During handling of the above exception")
_HEAD = "Traceback (most recent call last):"
_IGNORED = "Exception ignored in"
"""Before a traceback of Python's own end, which ends nothing."""


@dataclass
class _Trace:
    """A traceback, with those that it names as its causes.

    Attributes:
        errors: (type, message) of each exception, the one that was raised first at the beginning.
        frames: file and line of each frame, in the order in which they are printed.
    """

    errors: list[tuple[str, str]] = field(default_factory=list)
    frames: list[tuple[str, int]] = field(default_factory=list)


@dataclass(frozen=True)
class Cause:
    """What a run died of.

    Attributes:
        said: a sentence without its full stop, with the place in the user's code where there is one.
        file: that file; empty where none is the user's.
        ours: whether the sentence is one of verl-hier, which says what to do.
    """

    said: str
    file: str = ""
    ours: bool = False


class LastWords:
    """Takes the lines of a log as they come, and knows at the end what the run died of."""

    def __init__(self) -> None:
        self._lines: deque[tuple[str, str]] = deque(maxlen=KEPT)

    def take(self, lines: Iterable[bytes]) -> None:
        """Take further lines."""
        for line in lines:
            text = _COLOUR.sub("", line.decode(errors="replace")).rstrip("\n")
            found = _PREFIX.match(text)
            self._lines.append((found["source"], text[found.end() :]) if found else ("", text))

    def cause(self) -> Cause | None:
        """The exception that ended the run; None where nothing tells of one.

        It is the last one of the driver; else the last one of ours, or the last of another process.
        """
        driver = _last_of(self._lines, "")
        if driver is not None:
            return _told(driver)
        ours = [found["text"] for _, text in self._lines if (found := _OURS.search(text))]
        if ours:
            return Cause(_short(ours[-1]), ours=True)
        others = [_last_of(self._lines, source) for source in dict.fromkeys(source for source, _ in self._lines)]
        known = [trace for trace in others if trace is not None]
        return _told(known[-1]) if known else None


def _last_of(lines: Iterable[tuple[str, str]], source: str) -> _Trace | None:
    """The last traceback that one process has printed."""
    last = None
    for last in _traces(_REPEATED.sub("", text) for known, text in lines if known == source):  # noqa: B007
        pass
    return last


def _traces(lines: Iterable[str]) -> Iterator[_Trace]:
    """The tracebacks in what one process has printed, each with its chain."""
    trace, before = _Trace(), ""
    chained = inside = ignored = False
    for printed in lines:
        line = _GROUP.sub("", printed)
        error = _ERROR.match(line)
        if line.endswith(_HEAD):
            if trace.errors and not chained:
                if not ignored:
                    yield trace
                trace = _Trace()
            ignored = before.startswith(_IGNORED)
            inside, chained = True, False
        elif line.startswith(_CHAINED):
            chained = True
        elif frame := _FRAME.match(line):
            trace.frames.append((frame["file"], int(frame["line"])))
            inside, chained = True, False
        elif inside and error:
            trace.errors.append((error["type"].rpartition(".")[2], (error["text"] or "").strip()))
            # What Ray has carried from another process stands below, with the frames of that process.
            inside = error["cause"] is not None
        elif trace.errors and not inside and line.strip() and not chained:
            kind, text = trace.errors[-1]
            if not text or text.endswith(":") or (kind.startswith(_GONE) and len(text) < LONGEST):
                trace.errors[-1] = kind, f"{text} {line.strip()}".strip()
        before = line
    if trace.errors and not ignored:
        yield trace


def _told(trace: _Trace) -> Cause:
    kind, text = trace.errors[-1]
    if kind.startswith(_GONE):
        name = found["name"] if (found := _CLASS.search(text)) else ""
        process = f"the process {name}".rstrip()
        if ended := _EXITED.search(text):
            return Cause(f"{process} of the run ended with exit code {ended['code']}")
        return Cause(
            f"{process} of the run was killed, as the system does where memory runs out (`verl-hier check RECIPE "
            "--ready` says what the recipe needs)"
        )
    said = _short(text.rstrip(".") if kind in _PLAIN else f"{kind}: {text}" if text else kind)
    theirs = [(file, line) for file, line in trace.frames if is_users(file)]
    ours = kind in _PLAIN
    if not theirs:
        return Cause(said, ours=ours)
    file, line = theirs[-1]
    where = f"{shown_path(file)}:{line}"
    return Cause(said if where in said else f"{said} ({where})", file, ours)


def line_of_code(config: Any, file: str) -> str | None:
    """The line of a recipe that names a source file, its module, or the part of a plugin that is called like one.

    Args:
        config: a composed recipe, an OmegaConf `DictConfig`.
        file: a path.
    """
    from omegaconf import OmegaConf

    plain: Any = OmegaConf.to_container(config, resolve=True)
    words = "|".join(re.escape(word) for word in {Path(file).stem, Path(file).parent.name} - {"__init__", ""})
    named = re.compile(rf"(?<!\w)(?:{words})(?!\w)")
    for block in ("hier", "reward", "actor_rollout_ref.rollout"):
        place = plain
        for key in block.split("."):
            place = place.get(key) or {}
        for line, value in _texts(place, block):
            if named.search(value):
                return line
    return None


def _texts(block: Any, line: str) -> Iterator[tuple[str, str]]:
    """The texts below a line, and the names of plugins that are enabled."""
    if isinstance(block, Mapping):
        for key, value in block.items():
            if line == "hier.plugins":
                yield f"{line}.{key}", str(key)
            else:
                yield from _texts(value, f"{line}.{key}")
    elif isinstance(block, list):
        for value in block:
            yield from _texts(value, line)
    elif isinstance(block, str):
        yield line, block


def _short(text: str) -> str:
    text = text.strip()
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
