"""The authors' settings, which the groups of `hier/paper` hold: their values, where they come from, and what a recipe
has instead of them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verl_hier.recipe.catalogue import papers
from verl_hier.recipe.checks.rule import value
from verl_hier.recipe.pairs import folder

_LINE = re.compile(r"( *)[\"']?(\w+)[\"']?:\s*([^#]*?)\s*(?:#\s*(.*))?$")
NONE = "none"
"""The group that sets nothing."""


@dataclass(frozen=True)
class Setting:
    """One setting of the authors.

    Attributes:
        line: recipe line.
        value: the authors' value.
        where: its place in the source.
    """

    line: str
    value: Any
    where: str


def groups() -> list[str]:
    """The groups of `hier/paper` that set something, by name."""
    return [name for name in papers() if name != NONE]


def settings_of(group: str) -> list[Setting]:
    """The settings of a shipped group, in the order of its file; empty for a group that is not shipped.

    A file has one setting a line, with its place in the source as a comment: `lr: 1.0e-6  # optim.lr`.
    """
    path = folder() / "hier" / "paper" / f"{group}.yaml"
    return list(_settings(path)) if path.is_file() else []


def contradictions(config: Mapping[str, Any]) -> list[str]:
    """A sentence for each line in which a composed recipe no longer has what its group of `hier/paper` sets.

    Args:
        config: a composed recipe as plain containers.
    """
    group = value(config, "hier.paper.name")
    if not group:
        return []
    return [
        f"{setting.line} is {value(config, setting.line)}, but the authors' settings (hier/paper={group}) have "
        f"{setting.value} ({setting.where}); leave the override out to train as they did."
        for setting in settings_of(group)
        if value(config, setting.line) != setting.value
    ]


def _settings(path: Path) -> Iterator[Setting]:
    import yaml

    text = path.read_text(encoding="utf-8")
    content, places = yaml.safe_load(text), dict(_comments(text))
    for line in _leaves(content):
        if not line.startswith("hier.paper."):
            yield Setting(line, value(content, line), places.get(line, ""))


def _leaves(block: Mapping[str, Any], above: str = "") -> Iterator[str]:
    for key, held in block.items():
        line = f"{above}.{key}" if above else str(key)
        if isinstance(held, Mapping):
            yield from _leaves(held, line)
        else:
            yield line


def _comments(text: str) -> Iterator[tuple[str, str]]:
    """(recipe line, comment) of the lines of a YAML file in block style."""
    path: list[tuple[int, str]] = []
    for line in text.splitlines():
        found = _LINE.match(line)
        if found:
            indent, key, _, comment = found.groups()
            path = [place for place in path if place[0] < len(indent)] + [(len(indent), key)]
            if comment:
                yield ".".join(name for _, name in path), comment
