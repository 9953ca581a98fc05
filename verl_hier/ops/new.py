"""A new plugin as an installable package with a test: a copy of the example of its kind, with its name replaced."""

from __future__ import annotations

import keyword
from importlib import resources
from pathlib import Path
from typing import Any

from verl_hier import __version__
from verl_hier.errors import HierError
from verl_hier.host.manager import DEFAULT_ENABLED, PluginHost
from verl_hier.host.specs import Kind

EXAMPLES: dict[Kind, str] = {
    "environment": "count_up",
    "worker": "whole_history",
    "sampler": "early_branch",
    "estimator": "baseline_gap",
    "schedule": "warm_up",
}
"""The example of each kind: a folder of `examples/plugins`, which is installed as `verl_hier_examples`."""


def create(kind: Kind, name: str, folder: Path) -> list[Path]:
    """Copy the example of a kind to a package called `name` below `folder`.

    Args:
        kind: what the plugin brings.
        name: of the part, the plugin and the module; the distribution has dashes in place of the underscores.
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
    distribution = _dashed(name)
    root = folder / distribution
    if root.exists():
        raise HierError(f"{root} exists; choose another name, or another folder with --into.")
    old = EXAMPLES[kind]
    replacements = {
        f"verl-hier-{_dashed(old)}": distribution,
        'dependencies = ["verl-hier"]': f'dependencies = ["verl-hier>={__version__}"]',
        _camel(old): _camel(name),
        old: name,
    }
    created = []
    for path, text in _files(resources.files("verl_hier_examples") / old):
        for before, after in replacements.items():
            path, text = path.replace(before, after), text.replace(before, after)
        target = root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
        created.append(target.relative_to(folder))
    return created


def _files(folder: Any, below: str = "") -> list[tuple[str, str]]:
    """Path and text of each file of an example, `pyproject.toml` first."""
    found: list[tuple[str, str]] = []
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if entry.is_dir():
            found += [] if entry.name.startswith(("__", ".")) else _files(entry, f"{below}{entry.name}/")
        elif entry.name.endswith((".py", ".toml", ".md")):
            found.append((below + entry.name, entry.read_text(encoding="utf-8")))
    return sorted(found, key=lambda file: file[0] != "pyproject.toml")


def _dashed(name: str) -> str:
    return name.replace("_", "-")


def _camel(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("_"))
