"""Puts the recipes on Hydra's search path, so that verl's own entry point finds them by `--config-name`.

Registered from `compat.entry` instead of the `hydra_plugins` namespace, which Hydra cannot walk in editable installs.
Appending is harmless to other programs: our folder is consulted last and only for names that nobody else has.
"""

from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.plugins import Plugins
from hydra.plugins.search_path_plugin import SearchPathPlugin


class VerlHierSearchPath(SearchPathPlugin):
    """Appends `pkg://verl_hier_recipes`."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        search_path.append(provider="verl-hier", path="pkg://verl_hier_recipes")


def register() -> None:
    """Idempotent; about 50 ms, nearly all of it the import of hydra."""
    plugins = Plugins.instance()
    if VerlHierSearchPath not in plugins.discover(SearchPathPlugin):
        plugins.register(VerlHierSearchPath)
