"""Hydra without the work that it repeats from file to file and from recipe to recipe.

Hydra and OmegaConf keep nothing between two compositions, and build a table of all choices for every file, though only
a default such as `server: ${hier/size}` looks into it. The results are the same.
"""

from __future__ import annotations

import io
import os
import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, lru_cache
from itertools import takewhile
from typing import Any

_KEPT = 400
"""Merged lists of files; each takes about 100 kB."""
_READ: dict[tuple[int, ...], tuple[Any, bytes]] = {}
"""What a file holds, and that pickled, by its inode, its time and its size."""
_MERGED: dict[tuple[Any, ...], bytes] = {}
"""What a list of files merges to, pickled: OmegaConf's own deep copy takes seven times as long as reading a pickle."""


@contextmanager
def hydra_cache() -> Iterator[None]:
    """Within it, Hydra composes one configuration faster.

    Each file and each interpolation is parsed once, and what all files but the last of a list merge to is kept, since
    the last one is the recipe itself, as is what two lists begin with; a file that has changed since is read again.
    """
    from hydra._internal import defaults_list
    from hydra._internal.config_loader_impl import ConfigLoaderImpl
    from hydra._internal.config_repository import ConfigRepository
    from omegaconf import OmegaConf

    composition = _Composition()
    load, extract = OmegaConf.load, ConfigRepository._extract_defaults_list
    choices = defaults_list._create_interpolation_map

    def extract_from_copy(repository: Any, path: str, config: Any) -> Any:
        # Hydra takes the list out of the configuration, which other compositions use too.
        return extract(repository, path, composition.defaults_alone(config))

    def merge(loader: Any, defaults: Sequence[Any], repo: Any) -> Any:
        return composition.merged(loader, defaults, repo)

    def choices_if_asked(overrides: Any, defaults: Sequence[Any], self_added: bool) -> Any:
        asked = any(default.is_interpolation() for default in defaults if not default.is_self())
        return choices(overrides, defaults, self_added) if asked else None

    with (
        _replaced(OmegaConf, "load", lambda file: composition.read(file, load)),
        _replaced(ConfigRepository, "_extract_defaults_list", extract_from_copy),
        _replaced(ConfigLoaderImpl, "_compose_config_from_defaults_list", merge),
        _replaced(defaults_list, "_create_interpolation_map", choices_if_asked),
        interpolations_parsed_once(),
    ):
        yield


class _Composition:
    """Reading and merging the files of one configuration."""

    def __init__(self) -> None:
        self._place: dict[int, tuple[int, ...]] = {}

    def read(self, file: Any, load: Callable[[Any], Any]) -> Any:
        """What a file holds; it is shared, and may not be changed."""
        if not isinstance(file, io.TextIOWrapper):
            return load(file)
        stated = os.fstat(file.fileno())
        place = (stated.st_dev, stated.st_ino, stated.st_mtime_ns, stated.st_size)
        if place not in _READ:
            held = load(file)
            _READ[place] = held, pickle.dumps(held)
        self._place[id(_READ[place][0])] = place
        return _READ[place][0]

    def defaults_alone(self, config: Any) -> Any:
        """A shared configuration's defaults list in a configuration of its own; another one as it is."""
        from omegaconf import DictConfig, OmegaConf

        if id(config) not in self._place or not isinstance(config, DictConfig):
            return config
        return OmegaConf.create({"defaults": config._get_node("defaults")} if "defaults" in config else {})

    def merged(self, loader: Any, defaults: Sequence[Any], repository: Any) -> Any:
        """What a list of files merges to."""
        *others, recipe = defaults
        names = tuple(self._name(each, repository) for each in others)
        self._unshare(repository.load_config(recipe.config_path))
        # Hydra's own files come first in every recipe: what two lists begin with is kept too.
        for length in (max((_in_common(names, known) for known in _MERGED), default=len(names)), len(names)):
            if names[:length] not in _MERGED:
                merged = self._continued(loader, others, names[:length], repository)
                self._keep(names[:length], pickle.dumps(merged))
        self._keep(names, _MERGED.pop(names))
        whole = pickle.loads(_MERGED[names])
        self._merge_into(whole, loader, [recipe], repository)
        return whole

    def _continued(self, loader: Any, files: Sequence[Any], names: tuple[Any, ...], repository: Any) -> Any:
        """What the files of these names merge to, from the longest list that they begin with."""
        from omegaconf import OmegaConf

        begun = max((known for known in _MERGED if names[: len(known)] == known), key=len, default=())
        whole = OmegaConf.create()
        if begun:
            whole = pickle.loads(_MERGED[begun])
            self._keep(begun, _MERGED.pop(begun))
        rest = files[len(begun) : len(names)]
        for each in rest:
            self._unshare(repository.load_config(each.config_path))
        self._merge_into(whole, loader, rest, repository)
        return whole

    def _merge_into(self, whole: Any, loader: Any, files: Sequence[Any], repository: Any) -> None:
        """Hydra's own merging, which begins with nothing, on top of what was merged before."""
        from hydra.errors import ConfigCompositionException
        from omegaconf import flag_override
        from omegaconf.errors import OmegaConfBaseException

        with flag_override(whole, "no_deepcopy_set_nodes", True):
            for file in files:
                try:
                    whole.merge_with(loader._load_single_config(default=file, repo=repository).config)
                except OmegaConfBaseException as error:
                    raise ConfigCompositionException(
                        f"In '{file.config_path}': {type(error).__name__}: {error}"
                    ) from error

    @staticmethod
    def _keep(names: tuple[Any, ...], whole: bytes) -> None:
        """As the newest; the one that was not used for longest goes."""
        while len(_MERGED) >= _KEPT:
            del _MERGED[next(iter(_MERGED))]
        _MERGED[names] = whole

    def _name(self, default: Any, repository: Any) -> tuple[Any, ...]:
        config = repository.load_config(default.config_path).config
        return default.config_path, default.package, default.is_self, default.primary, self._place.get(id(config))

    def _unshare(self, result: Any) -> None:
        """Give Hydra a configuration that it may change, without its defaults list."""
        from omegaconf import DictConfig

        if id(result.config) in self._place:
            result.config = pickle.loads(_READ[self._place[id(result.config)]][1])
            if isinstance(result.config, DictConfig):
                result.config.pop("defaults", None)


def _in_common(names: tuple[Any, ...], known: tuple[Any, ...]) -> int:
    """With how many equal names two lists begin."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(names, known, strict=False)))


@contextmanager
def interpolations_parsed_once() -> Iterator[None]:
    """Within it, OmegaConf parses each interpolation once: half the time of resolving a configuration."""
    from omegaconf import base

    with _replaced(base, "parse", _parse_once(base.parse)):
        yield


@cache
def _parse_once(parse: Any) -> Any:
    # One within another changes nothing.
    return parse if hasattr(parse, "cache_info") else lru_cache(10_000)(parse)


@contextmanager
def _replaced(place: Any, name: str, ours: Any) -> Iterator[None]:
    theirs = place.__dict__[name]
    setattr(place, name, ours)
    try:
        yield
    finally:
        setattr(place, name, theirs)
