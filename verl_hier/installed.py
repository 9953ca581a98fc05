"""What is installed: folders of packages and their entry points, found without importing anything."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

from verl_hier.errors import HierError, PluginError, first_line

logger = logging.getLogger(__name__)


def failure_of(register: Callable[[], object]) -> BaseException | None:
    """What a registration with verl raises, None where it succeeds.

    verl swallows what a module of its entry points raises (verl/__init__.py of 0.9.1 logs it at DEBUG), so each of ours
    keeps it in `FAILURE`, from which `verl-hier doctor` and the check of a recipe raise it.
    """
    try:
        register()
    except Exception as error:
        logger.exception("verl-hier could not register itself with verl; run `verl-hier doctor`")
        return error
    return None


def package_folder(package: str) -> Path:
    """The folder of an installed package, found without importing it.

    Raises:
        HierError: when it is not installed.
    """
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise HierError(f"the package {package} is not installed; reinstall verl-hier.")
    return Path(next(iter(spec.submodule_search_locations)))


def points_of(group: str) -> metadata.EntryPoints:
    """The entry points of a group.

    Raises:
        PluginError: naming the package and the file, where the entry points of any installed package cannot be read:
            then Python reads those of no package, and verl finds none of its plugins.
    """
    try:
        return metadata.entry_points(group=group)
    except Exception as error:
        for distribution in metadata.distributions():
            try:
                distribution.entry_points  # noqa: B018 - reads the file
            except Exception as broken:
                name = (distribution.metadata["Name"] if distribution.metadata else None) or "of an unknown name"
                folder = getattr(distribution, "_path", distribution.locate_file(""))
                raise PluginError(
                    f"the installed package {name} has a malformed entry_points.txt, {folder}/entry_points.txt "
                    f"({first_line(broken)}), beside which Python reads no plugin of any package; reinstall {name} "
                    f"(`pip install --force-reinstall {name}`) or uninstall it."
                ) from error
        raise PluginError(f"the entry points of the installed packages cannot be read: {first_line(error)}.") from error
