"""What is installed: entry points of `verl_hier.plugins` and the folders of those that are packages of plugins.

Nothing here imports a plugin. Looking must be free of side effects, because an installed but unlisted plugin does
nothing; `verl_hier.plugins` imports what a recipe enables.
"""

from __future__ import annotations

import importlib.util
import logging
import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement

from verl_hier import __version__
from verl_hier.errors import PluginError
from verl_hier.specs import nearest

GROUP = "verl_hier.plugins"

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Candidate:
    """A plugin that could be loaded.

    Attributes:
        name: how `hier.plugins` names it: the entry point, or the folder inside a package of plugins.
        value: entry-point value, `package.module` or `package.module:object`.
        distribution: name of the distribution that brings it.
        version: version of that distribution.
        parent: entry point of the package that contains the folder; empty for an entry point.
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
        return self.value.partition(":")[0].strip()

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
    for point in metadata.entry_points(group=GROUP):
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


def folders(candidate: Candidate) -> dict[str, Candidate]:
    """The plugins inside a package of plugins: each subpackage whose name does not start with an underscore."""
    if ":" in candidate.value:
        return {}
    return {
        name: Candidate(
            name=name,
            value=f"{candidate.module}.{name}",
            distribution=candidate.distribution,
            version=candidate.version,
            parent=candidate.name,
            blocked=candidate.blocked,
        )
        for _, name, is_package in pkgutil.iter_modules(_locations(candidate.module))
        if is_package and not name.startswith("_")
    }


def check_known(enabled: Mapping[str, bool], points: Mapping[str, Candidate]) -> None:
    """Refuse names in `hier.plugins` that nothing installed answers to."""
    known = {*points, *(name for point in points.values() for name in folders(point))}
    for name in enabled:
        if name not in known:
            raise PluginError(
                f"hier.plugins.{name}: no installed plugin is called {name!r}{nearest(name, known)}. "
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
