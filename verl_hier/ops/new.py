"""A new plugin as an installable package with a test: what `verl-hier new` writes."""

from __future__ import annotations

import keyword
from pathlib import Path
from string import Template
from typing import Literal

from verl_hier import __version__
from verl_hier.errors import HierError
from verl_hier.host.manager import DEFAULT_ENABLED, PluginHost
from verl_hier.ops.new_templates import MODULES, PYPROJECT, README, TESTS

NewKind = Literal["estimator", "worker", "sampler", "environment"]


def create(kind: NewKind, name: str, folder: Path) -> list[Path]:
    """Write the package `name` below `folder`.

    Args:
        kind: what the plugin brings.
        name: of the part, the plugin, the module; the distribution is called the same with dashes.
        folder: where the package's own folder is made.

    Returns:
        The files, relative to `folder`.

    Raises:
        HierError: when the name is no Python name, is taken, or the folder exists.
    """
    if not name.isidentifier() or keyword.iskeyword(name) or name != name.lower():
        raise HierError(f"{name!r} cannot name a Python module; use lower-case letters, digits and underscores.")
    if name in PluginHost.load(DEFAULT_ENABLED).specs(kind):
        raise HierError(f"there already is a built-in {kind} called {name!r}; choose another name.")
    distribution = name.replace("_", "-")
    root = folder / distribution
    if root.exists():
        raise HierError(f"{root} exists; choose another name, or another folder with --into.")
    words = {
        "name": name,
        "kind": kind,
        "cls": "".join(part.capitalize() for part in name.split("_")),
        "distribution": distribution,
        "version": __version__,
    }
    files = {
        "pyproject.toml": PYPROJECT,
        "README.md": README,
        f"{name}/__init__.py": MODULES[kind],
        f"tests/test_{name}.py": TESTS[kind],
    }
    for place, text in files.items():
        path = root / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(Template(text).substitute(words), encoding="utf-8")
    return [root.relative_to(folder) / place for place in files]
