"""Hydra without the work that it repeats from file to file and from recipe to recipe.

Hydra and OmegaConf keep nothing between two compositions, and build a table of all choices for every file, though only
a default such as `server: ${hier/size}` looks into it. The results are the same.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache, lru_cache
from typing import Any

_KEPT = 32
"""Merged lists of files; each takes about a megabyte."""
_READ: dict[tuple[int, ...], Any] = {}
"""What a file holds, by its inode, its time and its size."""
_MERGED: dict[tuple[Any, ...], Any] = {}
"""What a list of files merges to, by the list and by the files that Hydra has read for it."""


@contextmanager
def hydra_cache() -> Iterator[None]:
    """Within it, Hydra composes one configuration faster.

    Each file and each interpolation is parsed once, and what a list of files merges to is kept; a file that has changed
    since is read again.
    """
    from hydra._internal import defaults_list
    from hydra._internal.config_loader_impl import ConfigLoaderImpl
    from omegaconf import OmegaConf

    load, merge = OmegaConf.load, ConfigLoaderImpl._compose_config_from_defaults_list
    choices = defaults_list._create_interpolation_map
    read: list[tuple[int, ...]] = []

    def load_once(file: Any) -> Any:
        if not hasattr(file, "fileno"):
            return load(file)
        stated = os.fstat(file.fileno())
        place = (stated.st_dev, stated.st_ino, stated.st_mtime_ns, stated.st_size)
        read.append(place)
        if place not in _READ:
            _READ[place] = load(file)
        # Hydra moves the nodes of what it loads into the config that it composes.
        return copy.deepcopy(_READ[place])

    def merge_once(loader: Any, defaults: Sequence[Any], repo: Any) -> Any:
        key = (*((each.config_path, each.package, each.is_self) for each in defaults), *read)
        if key not in _MERGED:
            while len(_MERGED) >= _KEPT:
                del _MERGED[next(iter(_MERGED))]
            _MERGED[key] = merge(loader, defaults, repo)
        # Overrides are applied to it.
        return copy.deepcopy(_MERGED[key])

    def choices_if_asked(overrides: Any, defaults: Sequence[Any], self_added: bool) -> Any:
        asked = any(default.is_interpolation() for default in defaults if not default.is_self())
        return choices(overrides, defaults, self_added) if asked else None

    with (
        _replaced(OmegaConf, "load", load_once),
        _replaced(ConfigLoaderImpl, "_compose_config_from_defaults_list", merge_once),
        _replaced(defaults_list, "_create_interpolation_map", choices_if_asked),
        interpolations_parsed_once(),
    ):
        yield


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
