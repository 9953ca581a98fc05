"""Importing one plugin, and saying whose fault it is when that or a hook of it fails."""

from __future__ import annotations

import importlib
import traceback
from types import SimpleNamespace
from typing import Any

import pluggy

from verl_hier.errors import PluginError, raised
from verl_hier.hookspecs import PROJECT
from verl_hier.host.discovery import Candidate
from verl_hier.host.renamed import now


def import_plugin(candidate: Candidate) -> Any:
    """The object whose hooks are registered for a plugin: its module, an object of it, or several modules as one."""
    if candidate.blocked:
        raise PluginError(
            f"plugin {candidate.name!r} ({candidate.origin}) is blocked: {candidate.blocked}; upgrade one of them or "
            f"disable it with `hier.plugins.{candidate.name}: false`."
        )
    try:
        plugin: Any = _merged(candidate) if len(candidate.modules) > 1 else importlib.import_module(candidate.module)
        for attribute in filter(None, candidate.value.partition(":")[2].strip().split(".")):
            plugin = getattr(plugin, attribute)
        plugin = plugin() if isinstance(plugin, type) else plugin
    except (Exception, SystemExit) as error:  # a plugin that calls sys.exit at import must not end us in silence
        raise load_failure(candidate, error) from error
    if not implemented(plugin) and not candidate.parent:
        raise PluginError(
            f"plugin {candidate.name!r} ({candidate.origin}, {candidate.value}) registers nothing: no "
            "function in it is decorated with `verl_hier.hookspecs.hookimpl`, and it has no subpackages."
        )
    return plugin


def _merged(candidate: Candidate) -> Any:
    """The hook implementations of a plugin's modules as one object.

    Raises:
        ImportError: naming the module that cannot be imported.
        TypeError: when two of the modules implement one hook.
    """
    hooks: dict[str, Any] = {}
    for name in candidate.modules:
        try:
            module = importlib.import_module(name)
        except (Exception, SystemExit) as error:
            raise ImportError(f"its module {name} raises {raised(error)}") from error
        for hook in implemented(module):
            if hook in hooks:
                raise TypeError(f"its modules {hooks[hook].__module__} and {name} both implement {hook}")
            hooks[hook] = getattr(module, hook)
    return SimpleNamespace(**hooks)


def is_plugin(point: Candidate) -> bool:
    """Whether an enabled package implements hooks itself, and is thus one plugin and no package of plugins."""
    try:
        return bool(implemented(importlib.import_module(point.module)))
    except (Exception, SystemExit) as error:
        raise load_failure(point, error) from error


def implemented(plugin: Any) -> list[str]:
    """Names of the functions of `plugin` that are marked with our `hookimpl`."""
    marked = (name for name in dir(plugin) if callable(getattr(plugin, name, None)))
    return [name for name in marked if getattr(getattr(plugin, name), f"{PROJECT}_impl", None)]


def load_failure(candidate: Candidate, error: BaseException) -> PluginError:
    return PluginError(
        f"plugin {candidate.name!r} ({candidate.origin}, module {candidate.module}) failed to load: {raised(error)}"
        f"{now(error)}; fix it or disable it with `hier.plugins.{candidate.name}: false`."
    )


def culprit(caller: pluggy.HookCaller, error: BaseException) -> str:
    """The plugin whose implementation of the hook is on the traceback."""
    codes = {i.function.__code__: i.plugin_name for i in caller.get_hookimpls() if hasattr(i.function, "__code__")}
    frames = (frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__))
    return next((codes[code] for code in frames if code in codes), "?")


def event_failure(plugin: str, hook: str, error: BaseException) -> PluginError:
    """The error for a plugin that raised in an event hook."""
    return PluginError(
        f"plugin {plugin!r} failed in {hook}: {raised(error)}; fix it or disable it with "
        f"`hier.plugins.{plugin}: false`."
    )
