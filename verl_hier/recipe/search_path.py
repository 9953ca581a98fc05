"""Puts the recipes on Hydra's search path, so that verl's own entry point finds them by `--config-name`.

Registered from `compat.entry` instead of the `hydra_plugins` namespace, which Hydra cannot walk in editable installs.
Appending is harmless to other programs: our folder is consulted last and only for names that nobody else has.
"""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

from hydra._internal.core_plugins.file_config_source import FileConfigSource
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.object_type import ObjectType
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigResult, ConfigSource
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import OmegaConf

from verl_hier.recipe import pairs

SCHEME = "verl-hier"


class ShippedSource(FileConfigSource):
    """The folder of the recipes, seen as Hydra wants it.

    - A file of a group says in blocks of its own, `tiny:` and `full:`, what holds at these scales: the block `tiny` of
      `hier/prompt/react.yaml` is the choice `react` of the group `hier/prompt/tiny`. So it says for the choices of
      `hier/policies`, in blocks such as `separate:`.
    - Besides the files there is a recipe for each pair of a method and an environment.
    """

    def __init__(self, provider: str, path: str) -> None:
        """
        Args:
            provider: Hydra's word for who has put the source into the search path.
            path: `verl-hier://recipes`.
        """
        ConfigSource.__init__(self, provider, path)
        self.path: str = str(pairs.folder())

    @staticmethod
    def scheme() -> str:
        """What a path of this source begins with."""
        return SCHEME

    def load_config(self, config_path: str) -> ConfigResult:
        """Read a file of the folder or one of its blocks, or make the recipe of a pair."""
        text = self._text_of_pair(config_path)
        if text is not None:
            content = OmegaConf.load(io.StringIO(text))
            return ConfigResult(config=content, path=self.full_path(), provider=self.provider, header={"package": None})
        file, scale = self._file_of(config_path)
        found: ConfigResult = super().load_config(file)
        if any(block in found.config for block in pairs.BLOCKS):
            blocks = OmegaConf.to_container(found.config, resolve=False)
            assert isinstance(blocks, dict)
            rest = {key: value for key, value in blocks.items() if key not in pairs.BLOCKS}
            found.config = OmegaConf.create(blocks[scale] if scale else rest)
        return found

    def is_config(self, config_path: str) -> bool:
        """Whether there is such a file, such a block of a file, or such a pair."""
        file, scale = self._file_of(config_path)
        if file == pairs.TABLE:
            return False
        if scale:
            return scale in pairs.blocks_of(Path(self.path, file))
        return self._text_of_pair(config_path) is not None or bool(super().is_config(file))

    def is_group(self, config_path: str) -> bool:
        """Whether there is such a folder, or a folder whose files have such blocks."""
        above, name = os.path.split(config_path)
        return bool(super().is_group(config_path)) or (name in pairs.BLOCKS and bool(super().is_group(above)))

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        """The names in a folder, with the pairs that were tried among the recipes."""
        above, scale = os.path.split(config_path)
        if scale in pairs.BLOCKS:
            return [name for name in self.list(above, ObjectType.CONFIG) if self.is_config(f"{config_path}/{name}")]
        names: list[str] = super().list(config_path, results_filter)
        tried = pairs.tried() if not config_path and results_filter != ObjectType.GROUP else ()
        return sorted({*names, *tried})

    def _file_of(self, config_path: str) -> tuple[str, str]:
        """The file of a config, relative to the folder, and the block of it; "" for what is in none."""
        folder, name = os.path.split(self._normalize_file_name(config_path))
        above, scale = os.path.split(folder)
        return (f"{above}/{name}", scale) if scale in pairs.BLOCKS else (os.path.join(folder, name), "")

    def _text_of_pair(self, config_path: str) -> str | None:
        from verl_hier.recipe.catalogue import shipped

        name = self._normalize_file_name(config_path).removesuffix(".yaml")
        return shipped(name).text if pairs.pair_of(name) and not super().is_config(config_path) else None


class VerlHierSearchPath(SearchPathPlugin):
    """Appends the source of the recipes."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        search_path.append(provider="verl-hier", path=f"{SCHEME}://recipes")


def register() -> None:
    """Idempotent; about 50 ms, nearly all of it the import of hydra."""
    plugins = Plugins.instance()
    known: list[Any] = plugins.discover(SearchPathPlugin)
    if VerlHierSearchPath not in known:
        plugins.register(ShippedSource)
        plugins.register(VerlHierSearchPath)
