"""verl's configuration classes without the rest of verl, which takes seconds to import.

`verl/__init__.py` imports Ray, tensordict and transformers; the dataclasses that validate a config
(`verl.workers.config`, `verl.trainer.config`, `verl.utils.config`) use none of them while they validate. Within
`config_classes()` these modules can be imported: the packages above them are there without their `__init__`, and the
libraries that they import for other purposes are empty. Afterwards `sys.modules` is as it was. Where verl is imported
already, it is used as it is.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

# Packages whose `__init__` is left out.
_PACKAGES = (
    *("verl", "verl.trainer", "verl.utils", "verl.utils.profiler", "verl.utils.qat", "verl.utils.skip"),
    "verl.workers",
)
# Modules that the classes import and do not use.
_UNUSED = ("torch", "torch.nn", "transformers", "verl.utils.fs", "verl.utils.model")
# What the `__init__` of a package would have taken from its modules.
_TAKEN = {
    "verl.utils.profiler": ("config", "ProfilerConfig"),
    "verl.utils.qat": ("core", "QATConfig"),
    "verl.utils.skip": ("config", "SkipManagerConfig"),
}
_WANTED = ("verl.utils.config", "verl.workers.config", "verl.trainer.config")
_loaded: dict[str, ModuleType] = {}


class _Unused(ModuleType):
    """A module whose every name is None."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return None


@contextmanager
def config_classes() -> Iterator[None]:
    """Within it, verl's configuration classes can be imported, also by the `_target_` of a config.

    Falls back to importing verl as a whole where that does not work, for instance for a verl that is arranged
    differently.
    """
    if "verl" in sys.modules:
        yield
        return
    before = dict(sys.modules)
    try:
        _install()
    except Exception:
        _restore(before)
        _loaded.clear()
        importlib.import_module("verl")
        yield
        return
    try:
        yield
    finally:
        _loaded.update({name: module for name, module in sys.modules.items() if name.partition(".")[0] == "verl"})
        _restore(before)


def _install() -> None:
    if _loaded:
        sys.modules.update(_loaded)
        return
    from verl_hier.installed import package_folder

    root = package_folder("verl")
    for name in (*_PACKAGES, *_UNUSED):
        module = _Unused(name)
        if name in _PACKAGES:
            module.__path__ = [str(root.joinpath(*name.split(".")[1:]))]
        above, _, last = name.rpartition(".")
        # A library that is there already stays.
        if sys.modules.setdefault(name, module) is module and above:
            setattr(sys.modules[above], last, module)
    for name, (inner, attribute) in _TAKEN.items():
        setattr(sys.modules[name], attribute, getattr(importlib.import_module(f"{name}.{inner}"), attribute))
    for name in _WANTED:
        importlib.import_module(name)


def _restore(before: dict[str, ModuleType]) -> None:
    """Take out verl and what stands for other libraries; other modules that were imported meanwhile stay."""
    for name in [*sys.modules]:
        if name.partition(".")[0] == "verl" or isinstance(sys.modules[name], _Unused):
            del sys.modules[name]
    sys.modules.update({name: before[name] for name in before if name.partition(".")[0] == "verl"})
