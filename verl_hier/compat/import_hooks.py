"""Run a function right after a module has been imported.

verl's registries live in modules that are slow to import (FSDP, transformers), while its plugins are loaded at
`import verl` in every process, also in those that never train. Registration is therefore tied to the import of the
registry itself: a process that never imports the registry never pays for it, and a process that does finds our entry
before any caller can look for it.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Sequence
from types import ModuleType

Callback = Callable[[ModuleType], None]


class _CallbackLoader(importlib.abc.Loader):
    """Delegates to the module's own loader and calls back once its body has run."""

    def __init__(self, inner: importlib.abc.Loader, callbacks: list[Callback]) -> None:
        self._inner = inner
        self._callbacks = callbacks

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._inner.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        # Put the real loader back first: tracebacks, `inspect` and reloads ask the module for it.
        if module.__spec__ is not None:
            module.__spec__.loader = self._inner
        module.__loader__ = self._inner
        self._inner.exec_module(module)
        for callback in self._callbacks:
            callback(module)


class _CallbackFinder(importlib.abc.MetaPathFinder):
    """First on `sys.meta_path`; answers only for modules that somebody waits for."""

    def __init__(self) -> None:
        self.pending: dict[str, list[Callback]] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        callbacks = self.pending.pop(fullname, None)
        if callbacks is None:
            return None
        # The name is no longer pending, so this search reaches the ordinary finders.
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None:
            self.pending[fullname] = callbacks
            return None
        spec.loader = _CallbackLoader(spec.loader, callbacks)
        return spec


_finder = _CallbackFinder()


def when_imported(name: str, callback: Callback) -> None:
    """Call `callback(module)` after the import of module `name`; at once if it is already imported.

    Args:
        name: Absolute module name.
        callback: Called once, in the importing thread. An exception it raises fails that import, on purpose.
    """
    module = sys.modules.get(name)
    spec = getattr(module, "__spec__", None)
    if module is not None and not getattr(spec, "_initializing", False):
        callback(module)
        return
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)
    _finder.pending.setdefault(name, []).append(callback)
