"""What is installed: entry points of `verl_hier.plugins`, and the plugins inside those that are packages of plugins.

Nothing here imports a plugin. Looking must be free of side effects, because an installed but unlisted plugin does
nothing; `verl_hier.host.manager` imports what a recipe enables.
"""

from __future__ import annotations

import importlib.util
import logging
import pkgutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement

from verl_hier import __version__
from verl_hier.errors import PluginError, did_you_mean
from verl_hier.installed import points_of

GROUP = "verl_hier.plugins"
ROOMS = (
    "environments",
    "workers",
    "samplers",
    "estimators",
    "schedules",
    "losses",
    "value_heads",
    "probes",
    "rollout_servers",
    "engines",
    "trainer_extensions",
)
"""Subpackages of a package of plugins whose modules are plugins, sorted by the kind of their parts."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Candidate:
    """A plugin that could be loaded.

    Attributes:
        name: how `hier.plugins` names it: the entry point, or the name of a module inside a package of plugins.
        value: entry-point value, `package.module` or `package.module:object`; of a plugin inside a package of plugins
            its modules, separated by `, `.
        distribution: name of the distribution that brings it.
        version: version of that distribution.
        parent: entry point of the package of plugins that contains it; empty for an entry point.
        blocked: why it cannot be loaded although it is installed; empty when it can.
    """

    name: str
    value: str
    distribution: str
    version: str
    parent: str = ""
    blocked: str = ""

    @property
    def module(self) -> str:
        """What is imported, for messages."""
        return self.value.partition(":")[0].strip()

    @property
    def modules(self) -> tuple[str, ...]:
        """Names of the modules that make the plugin."""
        return tuple(self.module.split(", "))

    @property
    def origin(self) -> str:
        """Distribution and version as error messages show them."""
        return f"{self.distribution} {self.version}".strip()


def entry_points() -> dict[str, Candidate]:
    """Every installed entry point by name, unread.

    Raises:
        PluginError: when two distributions claim one name; neither is preferred in silence.
    """
    found: dict[str, Candidate] = {}
    for point in points_of(GROUP):
        distribution = point.dist
        candidate = Candidate(
            name=point.name,
            value=point.value,
            distribution=distribution.name if distribution else "unknown distribution",
            version=distribution.version if distribution else "",
            blocked=_unmet(distribution),
        )
        other = found.setdefault(point.name, candidate)
        if other.value != candidate.value or other.distribution != candidate.distribution:
            raise PluginError(
                f"two distributions claim the plugin name {point.name!r}: {other.origin} ({other.value}) and "
                f"{candidate.origin} ({candidate.value}); uninstall one or rename its entry point."
            )
    return found


def contained(candidate: Candidate) -> dict[str, Candidate]:
    """The plugins inside a package of plugins, by name; nothing is imported, and a leading underscore hides a name.

    A subpackage is a plugin, unless it is called like one of `ROOMS`: then each module in it is one. Modules of one
    name in several rooms, such as a sampler and its estimator, are one plugin.
    """
    if ":" in candidate.value:
        return {}
    modules: dict[str, list[str]] = {}
    for name, is_package in _children(candidate.module):
        if name in ROOMS and is_package:
            for inner, _ in _children(f"{candidate.module}.{name}"):
                modules.setdefault(inner, []).append(f"{candidate.module}.{name}.{inner}")
        elif is_package:
            modules.setdefault(name, []).append(f"{candidate.module}.{name}")
    return {
        name: replace(candidate, name=name, value=", ".join(paths), parent=candidate.name)
        for name, paths in sorted(modules.items())
    }


def _children(package: str) -> Iterator[tuple[str, bool]]:
    """Name of each module of a package, and whether it is a package itself."""
    for _, name, is_package in pkgutil.iter_modules(_locations(package)):
        if not name.startswith("_"):
            yield name, is_package


def check_known(enabled: Mapping[str, bool], points: Mapping[str, Candidate]) -> None:
    """Refuse names in `hier.plugins` that nothing installed answers to."""
    known = {*points, *(name for point in points.values() for name in contained(point))}
    for name in enabled:
        if name not in known:
            raise PluginError(
                f"hier.plugins.{name}: no installed plugin is called {name!r}{did_you_mean(name, known)}. "
                f"Installed: {', '.join(sorted(points)) or 'none'}; remove the line or install the package that "
                "brings it."
            )


def _locations(module: str) -> list[str]:
    """Folders of a package, found without importing it or its parents."""
    top, *rest = module.split(".")
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        spec = None
    locations = [Path(place) for place in (spec.submodule_search_locations or ())] if spec else []
    for part in rest:
        locations = [place / part for place in locations if (place / part).is_dir()]
    return [str(place) for place in locations]


def _unmet(distribution: metadata.Distribution | None) -> str:
    """Why this version of verl-hier does not suit the distribution, from its own metadata."""
    for line in (distribution.requires if distribution else None) or ():
        try:
            requirement = Requirement(line)
        except InvalidRequirement:
            logger.debug("ignoring the requirement %r of %s", line, distribution)
            continue
        if requirement.name.lower().replace("_", "-") != "verl-hier" or requirement.marker:
            continue
        if not requirement.specifier.contains(__version__, prereleases=True):
            return f"it needs verl-hier {requirement.specifier}, and {__version__} is installed"
    return ""
