"""Where Hydra reads a recipe file of a user's own, whatever the file and its folder are called.

Hydra finds a primary config by its name alone, in the first folder of its search path that has the name. So that a file
called like a shipped recipe, or like one of verl's own configs, is itself, it is read under a name that nobody has.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from hydra import version
from hydra._internal.core_plugins.file_config_source import FileConfigSource
from hydra._internal.hydra import Hydra
from hydra._internal.sources_registry import SourcesRegistry
from hydra._internal.utils import create_config_search_path
from hydra.core.global_hydra import GlobalHydra
from hydra.plugins.config_source import ConfigLoadError, ConfigResult, ConfigSource
from omegaconf import OmegaConf

from verl_hier.recipe.compose import PRIMARY, verl_config_folder


class RecipeSource(FileConfigSource):
    """One recipe file as `PRIMARY`, and the other files and groups of its folder.

    Two files of the folder itself are left out, so that a default of their name is the next one of the search path: the
    recipe, which may extend the shipped recipe that has its name, and files called like verl's own configs, since every
    recipe begins with verl's `ppo_trainer`.
    """

    def __init__(self, provider: str, path: str) -> None:
        """
        Args:
            provider: Hydra's word for who has put the source into the search path.
            path: `recipe://` and the absolute path of the file.
        """
        super().__init__(provider, path)
        self._file = Path(path.removeprefix(f"{self.scheme()}://"))
        self.path: str = str(self._file.parent)

    @staticmethod
    def scheme() -> str:
        """What a path of this source begins with."""
        return "recipe"

    def load_config(self, config_path: str) -> ConfigResult:
        """Read a file of the folder."""
        if self._normalize_file_name(config_path) != f"{PRIMARY}.yaml":
            if not self.is_config(config_path):
                raise ConfigLoadError(f"Config not found : {config_path}")
            return super().load_config(config_path)
        with self._file.open(encoding="utf-8") as file:
            header = ConfigSource._get_header_dict(file.read(512))
            file.seek(0)
            content = OmegaConf.load(file)
        return ConfigResult(config=content, path=self.full_path(), provider=self.provider, header=header)

    def is_config(self, config_path: str) -> bool:
        """Whether the folder has a file of this name that is not left out."""
        name = self._normalize_file_name(config_path)
        if name == f"{PRIMARY}.yaml":
            return self._file.is_file()
        return Path(name).stem not in self._hidden(name) and bool(super().is_config(config_path))

    def _hidden(self, name: str) -> frozenset[str]:
        return frozenset() if os.path.dirname(name) else _configs_of_verl() | {self._file.stem}


@cache
def _configs_of_verl() -> frozenset[str]:
    return frozenset(path.stem for path in verl_config_folder().glob("*.yaml"))


@contextmanager
def composes_file(file: Path) -> Iterator[None]:
    """Within it, Hydra composes `PRIMARY` from one recipe file, as within its own `initialize_config_dir`.

    The search path is Hydra's own folder, the recipe's, verl's, and that of the shipped recipes.

    Args:
        file: the recipe, an absolute path.
    """
    version.setbase(None)
    SourcesRegistry.instance().register(RecipeSource)
    search = create_config_search_path(search_path_dir=f"recipe://{file}")
    search.append(provider="verl", path=f"file://{verl_config_folder()}")
    # Before the shipped recipes, which a plugin of Hydra's has appended.
    places = search.get_path()
    main = next(place for place, found in enumerate(places) if found.provider == "main")
    places.insert(main + 1, places.pop())
    Hydra.create_main_hydra2(task_name="app", config_search_path=search)
    try:
        yield
    finally:
        GlobalHydra.instance().clear()
