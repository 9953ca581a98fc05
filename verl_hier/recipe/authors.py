"""The authors' values as data: what their files say at a commit, compared with a recipe and with a checkout."""

from __future__ import annotations

import math
import re
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from verl_hier.errors import HierError
from verl_hier.recipe.checks.rule import value
from verl_hier.recipe.pairs import folder
from verl_hier.recipe.papers import settings_of

TOPICS = (
    *("rollout shape", "sampling", "limits", "reward", "format", "grouping", "normalisation", "loss and aggregation"),
    *("clipping", "KL", "entropy", "optimiser steps", "learning rate", "filters", "schedule"),
)
"""What the values of a method with released code have to say something about."""
ABSENT = "absent"
PRESENT = "present"
SHARED = "shared"
_COMPUTED: Mapping[str, Callable[..., Any]] = {
    "product": lambda *of: math.prod(of),
    "quotient": lambda above, below: above / below,
    "product over the last": lambda *of: math.prod(of[:-1]) / of[-1],
    "quotient, at least one": lambda above, below: max(1.0, above / below),
    "difference": lambda all_of_it, of: all_of_it - of,
    "kibi": lambda of: 1024 * of,
    "sum of kibis": lambda *of: 1024 * sum(of),
    "one more": lambda of: of + 1,
    "one less": lambda of: of - 1,
    "one more than the product": lambda *of: 1 + math.prod(of),
    "of each player": lambda of: 2 * of,
    "of both players": lambda of: of / 2,
    "list": lambda *of: list(of),
}
_PAYS = ("_penalty", "_reward")
"""How the names of the options end that add to a return or take from it."""
_RECIPE_LINE = re.compile(r"(hier|data|algorithm|trainer|actor_rollout_ref|critic)\.")


@dataclass(frozen=True)
class Place:
    """One place in a file of the authors.

    Attributes:
        repository: whose file it is: theirs, or one that theirs is put on top of.
        commit: at which it was read.
        file: path in the repository.
        number: line in it, from 1; None for a key that the whole file does not hold.
        key: what stands in front of the value, or the words that the line has.
        reads: the value; `PRESENT` where the line has the words of `key`, `ABSENT` where the file does not hold them.
    """

    repository: str
    commit: str
    file: str
    number: int | None
    key: str
    reads: Any

    def wrong(self, lines: Sequence[str]) -> str | None:
        """What the lines of the file say instead; None when they say the same."""
        if self.reads == ABSENT:
            holding = [number for number, line in enumerate(lines, 1) if self.key in line]
            return f"holds {self.key!r} in line {holding[0]}, and is recorded without it" if holding else None
        if self.number is None or self.number > len(lines):
            return f"has no line {self.number}"
        if self.reads == PRESENT:
            return None if self.key in lines[self.number - 1] else f"does not have {self.key!r} in line {self.number}"
        found = _read(lines[self.number - 1], self.key)
        if any(_same(said, self.reads) for said in found):
            return None
        said = " or ".join(repr(each) for each in found) or f"no {self.key!r}"
        return f"has {said} in line {self.number}, and is recorded with {self.key} = {self.reads!r}"


@dataclass(frozen=True)
class AuthorsValue:
    """One value of the authors.

    Attributes:
        name: recipe line, or a name of its own.
        line: recipe line that has to have the value; None for what is no line.
        topics: those of `TOPICS` that it speaks about.
        value: the value as a recipe writes it; None where it is unconfirmed.
        places: where it was read.
        unconfirmed: why nothing confirms it; empty where something does.
        case: file of executed cases that confirm it; empty where a place does.
        policies: the choice of `hier/policies` with which a recipe has it.
    """

    name: str
    line: str | None
    topics: tuple[str, ...]
    value: Any
    places: tuple[Place, ...]
    unconfirmed: str = ""
    case: str = ""
    policies: str = SHARED


@dataclass(frozen=True)
class Authors:
    """The values of one group of `hier/paper`, with the repository and the commit at which they were read.

    Attributes:
        group: name in `hier/paper`.
        repository: where they were read.
        commit: at which.
        values: what was read.
        copy_of: whose files the repository holds where the authors' own was not to be had; empty for theirs.
    """

    group: str
    repository: str
    commit: str
    values: tuple[AuthorsValue, ...]
    copy_of: str = ""

    @property
    def unconfirmed(self) -> list[AuthorsValue]:
        """The values that nothing confirms."""
        return [each for each in self.values if each.unconfirmed]


def authors(content: Mapping[str, Any] | None = None) -> dict[str, Authors]:
    """The recorded values by group of `hier/paper`.

    Args:
        content: the file as it was read; the shipped one when omitted.
    """
    content = content if content is not None else _shipped()
    return {group: _authors(group, entry, content["words"]) for group, entry in content["groups"].items()}


def unread() -> dict[str, str]:
    """Why the authors' files could not be read, by the groups of `hier/paper` for which that is so."""
    return dict(_shipped()["unread"])


def deviations(theirs: Authors, config: Mapping[str, Any]) -> list[str]:
    """A sentence for each value in which a composed recipe has neither the authors' value nor an entry in `differs`.

    Args:
        theirs: the authors' values.
        config: a recipe at size `node` as plain containers; with another choice of `hier/policies` than `shared`, only
            the values of that choice are looked at.
    """
    differs, form = value(config, "hier.paper.differs") or {}, value(config, "hier.recipe.policies") or SHARED
    found = [
        f"{each.line} is {value(config, each.line)!r}, and {_where(each)} of {theirs.repository} has {each.value!r}"
        for each in theirs.values
        if each.policies == form and each.line and not each.unconfirmed and each.line not in differs
        if not _same(value(config, each.line), each.value)
    ]
    if form != SHARED:
        return found
    found += [
        f"{line} is {value(config, line)!r}, and `differs` of hier/paper={theirs.group} says {held['ours']!r}"
        for line, held in differs.items()
        if _RECIPE_LINE.match(line) and held.get("ours") is not None and not _same(value(config, line), held["ours"])
    ]
    named = {each.name for each in theirs.values} | {each.line for each in theirs.values}
    found += [
        f"{setting.line} is set by hier/paper={theirs.group}, and the recorded values do not name it"
        for setting in settings_of(theirs.group)
        if setting.line not in named and setting.line not in differs
    ]
    found += [
        f"{line} is {held!r}, and neither the recorded values nor `differs` of hier/paper={theirs.group} name it"
        for line, held in _payments(config)
        if line not in named and line not in differs
    ]
    spoken = {topic for each in theirs.values for topic in each.topics}
    return found + [f"{theirs.group} has no value for the topic {topic!r}" for topic in TOPICS if topic not in spoken]


def whole(group: str, config: Mapping[str, Any]) -> str:
    """Why the training loop of a group is not called whole; empty when it is.

    Args:
        group: name in `hier/paper`.
        config: its recipe at size `node` as plain containers.
    """
    theirs = authors().get(group)
    if theirs is None:
        return unread().get(group, "its values are not recorded from the authors' files")
    if wrong := deviations(theirs, config):
        return wrong[0]
    return "; ".join(f"`{each.name}` is not confirmed: {each.unconfirmed}" for each in theirs.unconfirmed)


def confirm(theirs: Authors, checkout: Path) -> list[str]:
    """A sentence for each place of the authors' values that a checkout does not have.

    Args:
        theirs: the authors' values.
        checkout: a clone, a bare git directory, or a plain folder of one of their repositories at the commit. Places
            in another repository, all of whose files it lacks, are left out.
    """
    wrong = []
    for name, place in places_in(theirs, checkout):
        said = place.wrong(_lines(checkout, place.commit, place.file))
        if said:
            wrong.append(f"{theirs.group}: {name}: {place.file} {said}")
    return wrong


def places_in(theirs: Authors, checkout: Path) -> list[tuple[str, Place]]:
    """The places, with the names of their values, of the repositories of a group all of whose files a checkout has.

    A fork has the files of what it was made of, as another commit left them: files most of which say something else,
    and which git does not know at the recorded commit, are not those of the repository.
    """
    named = [(each.name, place) for each in theirs.values for place in each.places]
    found: list[tuple[str, Place]] = []
    for repository in dict.fromkeys(place.repository for _, place in named):
        inside = [(name, place) for name, place in named if place.repository == repository]
        files = {(place.commit, place.file) for _, place in inside}
        if not all(_has(checkout, *file) for file in files):
            continue
        if all(_in_git(checkout, *file) is not None for file in files):
            found += inside
            continue
        wrong = sum(place.wrong(_lines(checkout, place.commit, place.file)) is not None for _, place in inside)
        found += inside if 2 * wrong < len(inside) else []
    return found


def holders(checkout: Path) -> list[Authors]:
    """The groups whose own repository a checkout is; or else those whose files are put on top of it."""
    found = [(theirs, {place.repository for _, place in places_in(theirs, checkout)}) for theirs in authors().values()]
    own = [theirs for theirs, repositories in found if theirs.repository in repositories]
    return own or [theirs for theirs, repositories in found if repositories]


def _payments(config: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """(recipe line, value) of the penalties and rewards that a composed recipe sets to anything but 0."""
    for block in ("environment", "worker", "estimator"):
        for key, held in (value(config, f"hier.{block}") or {}).items():
            if key.endswith(_PAYS) and isinstance(held, int | float) and held:
                yield f"hier.{block}.{key}", held


def _has(checkout: Path, commit: str, file: str) -> bool:
    try:
        _lines(checkout, commit, file)
    except HierError:
        return False
    return True


def _authors(group: str, entry: Mapping[str, Any], words: Mapping[str, Mapping[str, Any]]) -> Authors:
    own = {"repository": entry["repository"], "commit": entry["commit"]}
    files = {
        name: {**own, **(file if isinstance(file, dict) else {"file": file})} for name, file in entry["files"].items()
    }
    values = tuple(_value(name, held, files, words) for name, held in entry["values"].items())
    return Authors(group, entry["repository"], entry["commit"], values, entry.get("copy_of", ""))


def _value(
    name: str, held: Mapping[str, Any], files: Mapping[str, Mapping[str, str]], words: Mapping[str, Mapping[str, Any]]
) -> AuthorsValue:
    line, form = held.get("line", name if _RECIPE_LINE.match(name) else None), held.get("policies", SHARED)
    topics = tuple(held["topic"]) if isinstance(held["topic"], list) else (held["topic"],)
    if "unconfirmed" in held:
        return AuthorsValue(name, line, topics, None, (), held["unconfirmed"])
    if "case" in held:
        return AuthorsValue(name, line, topics, held["value"], (), case=held["case"])
    several = isinstance(held["at"], list)
    at, keys, reads = (held[field] if several else [held[field]] for field in ("at", "key", "reads"))
    places = tuple(_place(*place, files) for place in zip(at, keys, reads, strict=True))
    theirs = _COMPUTED[held["computed"]](*reads) if "computed" in held else held.get("value", reads[0])
    if line in words and isinstance(theirs, str):
        theirs = words[line].get(theirs, theirs)
    return AuthorsValue(name, line, topics, theirs, places, policies=form)


def _place(at: str, key: str, reads: Any, files: Mapping[str, Mapping[str, str]]) -> Place:
    file, _, number = at.partition(":")
    return Place(**files[file], number=int(number) if number else None, key=key, reads=reads)


def _read(line: str, key: str) -> list[Any]:
    import yaml

    found = []
    start = r"(?<!\w)" if key[0].isalnum() else ""
    for text in re.findall(rf"{start}{re.escape(key)}['\"]?(?:\s*[:=*]\s*|\s+)(?:\$\[)?(\[.*?\]|[^\s,\])#}}]+)", line):
        text = text.rstrip(":;\\")
        text = text[:-1] if text[-1:] in "'\"" and text.count(text[-1]) == 1 else text
        try:
            found.append(yaml.safe_load(text))
        except yaml.YAMLError:
            found.append(text)
    return found


def _same(ours: Any, theirs: Any) -> bool:
    if isinstance(ours, list) and isinstance(theirs, list):
        return len(ours) == len(theirs) and all(map(_same, ours, theirs))
    if isinstance(ours, bool) or isinstance(theirs, bool) or ours is None or theirs is None:
        return ours is theirs
    try:
        return math.isclose(float(ours), float(theirs), rel_tol=1e-9)
    except (TypeError, ValueError):
        return bool(ours == theirs)


def _where(each: AuthorsValue) -> str:
    if each.case:
        return f"the executed case {each.case}"
    place = each.places[0]
    return place.file if place.number is None else f"{place.file}:{place.number}"


@cache
def _in_git(checkout: Path, commit: str, file: str) -> str | None:
    """The file as it was at a commit; None where git does not know it."""
    git = subprocess.run(["git", "-C", str(checkout), "show", f"{commit}:{file}"], capture_output=True, check=False)
    return git.stdout.decode("utf-8", "replace") if git.returncode == 0 else None


@cache
def _lines(checkout: Path, commit: str, file: str) -> tuple[str, ...]:
    text = _in_git(checkout, commit, file)
    if text is not None:
        return tuple(text.splitlines())
    try:
        return tuple((checkout / file).read_text("utf-8").splitlines())
    except OSError as error:
        raise HierError(f"{checkout} has no {file}, neither as a file nor in its commit {commit[:7]}.") from error


@cache
def _shipped() -> Mapping[str, Any]:
    import yaml

    content: Mapping[str, Any] = yaml.safe_load((folder() / "authors" / "values.yaml").read_text("utf-8"))
    return content
