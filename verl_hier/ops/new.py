"""What `verl-hier new` writes: a copy of the example of its kind under another name, or a recipe of one's own."""

from __future__ import annotations

import keyword
import re
import sys
from importlib import metadata, resources
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, get_args

from verl_hier import __version__
from verl_hier.errors import HierError, PluginError, did_you_mean
from verl_hier.host.discovery import contained, entry_points
from verl_hier.host.manager import DEFAULT_ENABLED, PluginHost, discover
from verl_hier.host.specs import Kind
from verl_hier.recipe import catalogue
from verl_hier.recipe.pairs import folder as shipped_recipes
from verl_hier.recipe.yaml_files import read_yaml

Package = Literal["environment", "worker", "sampler", "estimator", "schedule", "method"]
EXAMPLES: dict[Package, str] = {
    "environment": "count_to",
    "worker": "whole_history",
    "sampler": "early_branch",
    "estimator": "baseline_gap",
    "schedule": "warm_up",
    "method": "plan_first",
}
"""The example of each kind: a folder of `examples/plugins`, which is installed as `verl_hier_examples`."""
TEXTS = (".py", ".toml", ".md", ".yaml")
SMALL = """data: {train_batch_size: 8, max_prompt_length: 192, max_response_length: 512}
actor_rollout_ref:
  rollout: {n: 12}
  actor: {ppo_mini_batch_size: 4}
"""
"""The lines on size that a shipped environment brings, for one that brings none."""
OWN_FILES = ("setup", "conftest", "tests")
"""Names of files or folders with a meaning of their own in a package."""


def create_package(kind: Package, name: str, folder: Path, environment: str = "alfworld") -> list[Path]:
    """Copy the example of a kind to a package called `name` below `folder`.

    Args:
        kind: what the plugin brings: one part, or a method of several parts and the recipe that names them.
        name: of the parts, the plugin and the module; the distribution has dashes in place of the underscores.
        folder: where the package's own folder is made.
        environment: the one that the recipe of a method names, shipped or of an installed plugin.

    Returns:
        The files, relative to `folder`.

    Raises:
        HierError: when the name is no Python name, is taken, or the folder exists; when there is no such environment.
    """
    root = folder / _dashed(name)
    if root.exists():
        raise HierError(f"{root} exists; choose another name, or another folder with --into.")
    _require_module_name(name)
    _require_free(kind, name)
    old = EXAMPLES[kind]
    example = _files(resources.files("verl_hier_examples") / old)
    _require_no_clash(name, "".join(text for path, text in example if path.endswith(".py")))
    replacements = {
        f"verl-hier-{_dashed(old)}": _dashed(name),
        'dependencies = ["verl-hier"]': f'dependencies = ["verl-hier>={__version__}"]',
        _camel(old): _camel(name),
        **(_on(environment) if kind == "method" else {}),
        old: name,
    }
    created = []
    for path, text in example:
        for before, after in replacements.items():
            path, text = path.replace(before, after), text.replace(before, after)
        created.append(_write(folder, Path(root.name) / path, text))
    return created


def _on(environment: str) -> dict[str, str]:
    """What changes in the recipe of the example when it names another environment than text households."""
    groups = "  - hier/environment: alfworld\n  - hier/environment/tiny: alfworld\n"
    shipped = shipped_recipes() / "hier" / "environment" / f"{environment}.yaml"
    if shipped.is_file():
        # Where no small tasks are described, the environment's own are all that there is.
        small = f"  - hier/environment/tiny: {environment}\n" if "tiny" in read_yaml(shipped)[1] else ""
        return {"on text households": f"on {environment}", groups: f"  - hier/environment: {environment}\n{small}"}
    installed = discover(dict.fromkeys(entry_points(), True))
    plugins = {name: plugin.name for plugin in installed for name in plugin.provides.get("environment", ())}
    if environment not in plugins:
        raise HierError(
            f"--environment: no installed plugin has an environment called {environment!r}"
            f"{did_you_mean(environment, plugins)}; `verl-hier environments` lists them."
        )
    part = f"  environment: {{name: {environment}}}\n  rollout: {{max_turns: 40, environment_processes: 1}}\n"
    return {
        "on text households": f"on {environment}",
        groups: "",
        "  plugins: {plan_first: true}\n": f"  plugins: {{plan_first: true, {plugins[environment]}: true}}\n{part}",
        "\nactor_rollout_ref:\n  rollout: {n: 12}\n": f"\n{SMALL}",
    }


def create_recipe(name: str, folder: Path, like: str) -> list[Path]:
    """Copy a recipe to `name.yaml` in `folder`, as one that can be changed.

    Args:
        name: of the recipe and its file.
        folder: where the file is made.
        like: a shipped recipe, or the path of another one.

    Returns:
        The file, relative to `folder`.

    Raises:
        HierError: when the name is not one for a recipe, is that of a shipped one, or the file exists.
    """
    file = Path(f"{name}.yaml")
    if (folder / file).exists():
        raise HierError(f"{folder / file} exists; choose another name, or another folder with --into.")
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise HierError(f"{name!r} cannot name a recipe; use lower-case letters, digits and underscores.")
    if name in {recipe.name for recipe in catalogue.recipes()}:
        raise HierError(f"there already is a shipped recipe called {name!r}; choose another name.")
    source = catalogue.find(like)
    lines = source.text.splitlines()
    head = [] if source.summary else [f"# {source.name}, changed."]
    named = [re.sub(rf"\b(name|experiment_name): {re.escape(source.name)}\b", rf"\1: {name}", line) for line in lines]
    return [_write(folder, file, "\n".join([*head, *named, ""]))]


def _write(folder: Path, file: Path, text: str) -> Path:
    (folder / file).parent.mkdir(parents=True, exist_ok=True)
    (folder / file).write_text(text, encoding="utf-8")
    return file


def _require_module_name(name: str) -> None:
    if not name.isidentifier() or keyword.iskeyword(name) or name != name.lower() or name.startswith("_"):
        raise HierError(f"{name!r} cannot name a Python module; use lower-case letters, digits and underscores.")
    if name in OWN_FILES:
        raise HierError(f"{name!r} has a meaning of its own in a package; choose another name.")
    if name in sys.stdlib_module_names:
        raise HierError(f"{name!r} is a module of Python's standard library, which it would hide; choose another name.")


def _require_free(kind: Package, name: str) -> None:
    """Refuse the name of anything that is installed: a part, a plugin, a distribution or a module."""
    if kind in get_args(Kind) and name in PluginHost.load(DEFAULT_ENABLED).specs(kind):  # type: ignore[arg-type]
        raise HierError(f"there already is a built-in {kind} called {name!r}; choose another name.")
    try:
        points = entry_points()
    except PluginError:
        points = {}  # `verl-hier doctor` says what is wrong with the installed ones.
    for point in points.values():
        if name == point.name or name in contained(point):
            raise HierError(f"there already is a plugin called {name!r}, of {point.origin}; choose another name.")
    if _is_distribution(_dashed(name)):
        raise HierError(f"a package called {_dashed(name)!r} is installed already; choose another name.")
    # A folder without code, such as one in the working directory, has a spec too, but no origin.
    found = find_spec(name)
    if name in metadata.packages_distributions() or (found is not None and found.origin is not None):
        raise HierError(f"{name!r} is an installed Python package, which it would hide; choose another name.")


def _is_distribution(name: str) -> bool:
    try:
        metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def _require_no_clash(name: str, code: str) -> None:
    """Refuse a name whose class would be called like something that the example imports or defines."""
    if re.search(rf"\b{_camel(name)}\b", code):
        raise HierError(f"{name!r} makes a class {_camel(name)}, which its module has already; choose another name.")


def _files(folder: Any, below: str = "") -> list[tuple[str, str]]:
    """Path and text of each file of an example, `pyproject.toml` first."""
    found: list[tuple[str, str]] = []
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if entry.is_dir():
            skipped = entry.name.startswith(("__", ".")) or entry.name == "build"  # what pip leaves in a checkout
            found += [] if skipped else _files(entry, f"{below}{entry.name}/")
        elif entry.name.endswith(TEXTS):
            found.append((below + entry.name, entry.read_text(encoding="utf-8")))
    return sorted(found, key=lambda file: file[0] != "pyproject.toml")


def _dashed(name: str) -> str:
    return name.replace("_", "-")


def _camel(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("_"))
