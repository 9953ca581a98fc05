"""The plugin host: imports what a recipe enables, and knows where every part came from.

A recipe's `hier.plugins` maps names to true or false. A name is an entry point of the group `verl_hier.plugins`, or
a module of one that is a package of plugins, as the built-ins are. Nothing else is imported. Whatever goes wrong stops
the run with the plugin's name, its distribution and the line that disables it: verl's own plugin loader swallows
exceptions, so none of this may rely on it.
"""

from __future__ import annotations

import re
import sys
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, is_dataclass, replace
from typing import Any

import pluggy

from verl_hier.errors import PluginError, RecipeError, did_you_mean
from verl_hier.hookspecs import PROJECT, SPEC_CLASSES
from verl_hier.host.discovery import Candidate, check_known, contained, entry_points
from verl_hier.host.loading import culprit, event_failure, implemented, import_plugin, is_plugin, load_failure
from verl_hier.host.specs import (
    REGISTERED,
    AnyKind,
    EngineSpec,
    Kind,
    NoOptions,
    PolicyLossSpec,
    ProbeSpec,
    Registered,
    RolloutServerSpec,
    Spec,
    TrainerExtensionSpec,
    ValueHeadSpec,
    hook_of,
)

DEFAULT_ENABLED: Mapping[str, bool] = {"builtin": True}


@dataclass(frozen=True)
class Provenance:
    """Where a registered part came from."""

    plugin: str
    distribution: str
    version: str
    module: str


@dataclass(frozen=True)
class PluginStatus:
    """One installed plugin as `verl-hier plugins` and `verl-hier doctor` show it.

    Attributes:
        enabled: whether the given `hier.plugins` switches it on.
        blocked: why it cannot be loaded; empty when it can, or when it was not tried because it is off.
        provides: kind to names of the parts; only known for enabled plugins, others are not imported.
        hooks: event hooks that it implements.
    """

    name: str
    parent: str
    module: str
    distribution: str
    version: str
    enabled: bool
    blocked: str
    provides: Mapping[str, tuple[str, ...]]
    hooks: tuple[str, ...] = ()


class EventHooks:
    """`host.hook.<event>(…)`: pluggy's call, with a failing plugin named. Arguments are keywords, as in pluggy."""

    def __init__(self, manager: pluggy.PluginManager) -> None:
        self._manager = manager

    def __getattr__(self, name: str) -> Callable[..., list[Any]]:
        if name.startswith("_"):
            raise AttributeError(name)
        caller: pluggy.HookCaller = getattr(self._manager.hook, name)

        def call(**arguments: Any) -> list[Any]:
            try:
                return typing.cast("list[Any]", caller(**arguments))
            except Exception as error:
                raise event_failure(culprit(caller, error), name, error) from error

        return call


class PluginHost:
    """The enabled plugins of one process. Make it with `load`."""

    def __init__(self, candidates: Iterable[Candidate], kind: Kind | None = None) -> None:
        self._kind = kind
        self._manager = pluggy.PluginManager(PROJECT)
        for specifications in SPEC_CLASSES:
            self._manager.add_hookspecs(specifications)
        self._candidates: dict[str, Candidate] = {}
        self._specs: dict[AnyKind, dict[str, Any]] = {kind: {} for kind in REGISTERED}
        self._provenance: dict[tuple[AnyKind, str], Provenance] = {}
        for candidate in candidates:
            self._register(candidate)
        self._check_pending()
        self._collect()
        self.hook = EventHooks(self._manager)

    @classmethod
    def load(cls, enabled: Mapping[str, bool], kind: Kind | None = None) -> PluginHost:
        """The host for one `hier.plugins` block; loaded once a process for equal blocks.

        Args:
            enabled: the block.
            kind: import of the built-in plugins only the modules in the room of this kind of part, which takes a
                fraction of the time; None for all.

        Raises:
            PluginError: for an unknown name, a plugin that fails to import or to register, or a clash of names.
        """
        key = frozenset(enabled.items()), kind
        if key not in _HOSTS:
            _HOSTS[key] = cls(select(enabled), kind)
        return _HOSTS[key]

    @property
    def plugins(self) -> tuple[str, ...]:
        """Names of the loaded plugins in load order."""
        return tuple(self._candidates)

    def spec(self, kind: Kind, name: str) -> Spec:
        """The part that a recipe calls `name`."""
        known = self.specs(kind)
        if name not in known:
            raise RecipeError(
                f"hier.{kind}.name: no enabled plugin provides {_article(kind)} {kind} called "
                f"{name!r}{did_you_mean(name, known)}. Known: {', '.join(sorted(known)) or 'none'}"
                f"{self._where_else(name)}; `verl-hier {kind}s` explains them."
            )
        return known[name]

    @typing.overload
    def specs(self, kind: Kind) -> dict[str, Spec]: ...
    @typing.overload
    def specs(self, kind: typing.Literal["policy_loss"]) -> dict[str, PolicyLossSpec]: ...
    @typing.overload
    def specs(self, kind: typing.Literal["value_head"]) -> dict[str, ValueHeadSpec]: ...
    @typing.overload
    def specs(self, kind: typing.Literal["probe"]) -> dict[str, ProbeSpec]: ...
    @typing.overload
    def specs(self, kind: typing.Literal["rollout_server"]) -> dict[str, RolloutServerSpec]: ...
    @typing.overload
    def specs(self, kind: typing.Literal["engine"]) -> dict[str, EngineSpec]: ...
    @typing.overload
    def specs(self, kind: typing.Literal["trainer_extension"]) -> dict[str, TrainerExtensionSpec]: ...
    def specs(self, kind: AnyKind) -> Any:
        """All registered parts of a kind by name."""
        return dict(self._specs[kind])

    def provenance(self, kind: AnyKind, name: str) -> Provenance:
        """Which plugin registered the part."""
        return self._provenance[(kind, name)]

    def provided_by(self, plugin: str) -> dict[str, tuple[str, ...]]:
        """Names of the parts that a loaded plugin has registered, by kind."""
        found: dict[str, tuple[str, ...]] = {}
        for (kind, name), provenance in self._provenance.items():
            if provenance.plugin == plugin:
                found[kind] = (*found.get(kind, ()), name)
        return found

    def event_hooks(self, plugin: str) -> tuple[str, ...]:
        """Event hooks that a loaded plugin implements."""
        callers = self._manager.get_hookcallers(self._manager.get_plugin(plugin)) or []
        registration = {hook_of(kind) for kind in REGISTERED}
        return tuple(sorted(caller.name for caller in callers if caller.name not in registration))

    def implements(self, hook: str) -> bool:
        """Whether any plugin implements a hook."""
        return bool(getattr(self._manager.hook, hook).get_hookimpls())

    def metrics(self, **arguments: Any) -> dict[str, float]:
        """The merged `hier_metrics` of all plugins.

        Raises:
            PluginError: for a key without the prefix `hier/`, or one that two plugins return.
        """
        merged: dict[str, float] = {}
        owner: dict[str, str] = {}
        for implementation in reversed(self._manager.hook.hier_metrics.get_hookimpls()):
            name = implementation.plugin_name
            try:
                answer: Any = implementation.function(*(arguments[a] for a in implementation.argnames))
            except Exception as error:
                raise event_failure(name, "hier_metrics", error) from error
            for key, value in (answer or {}).items():
                if not key.startswith("hier/"):
                    raise PluginError(f"plugin {name!r} returns the metric {key!r}; its keys must start with 'hier/'.")
                if key in merged:
                    raise PluginError(
                        f"two plugins, {owner[key]!r} and {name!r}, return the metric {key!r}; rename one or disable "
                        f"a plugin with `hier.plugins.{name}: false`."
                    )
                merged[key], owner[key] = value, name
        return merged

    def _register(self, candidate: Candidate) -> None:
        if candidate.name in self._candidates:
            other = self._candidates[candidate.name]
            raise PluginError(
                f"two enabled plugins are called {candidate.name!r}: {other.module} of {other.origin} and "
                f"{candidate.module} of {candidate.origin}; rename one entry point or do not enable both."
            )
        self._candidates[candidate.name] = candidate
        if self._kind is not None and candidate.parent in DEFAULT_ENABLED:
            modules = [module for module in candidate.modules if f".{self._kind}s." in module]
            if not modules:
                return
            candidate = replace(candidate, value=", ".join(modules))
        plugin = import_plugin(candidate)
        try:
            self._manager.register(plugin, name=candidate.name)
        except Exception as error:  # PluginValidationError, or ValueError when one module is registered twice
            raise load_failure(candidate, error) from error
        for caller in self._manager.get_hookcallers(plugin) or []:
            own = [i for i in caller.get_hookimpls() if i.plugin is plugin]
            if any(i.wrapper or i.hookwrapper for i in own):
                raise self._refuse(candidate.name, f"it wraps {caller.name}; our hooks are called in turn, not around")

    def _check_pending(self) -> None:
        try:
            self._manager.check_pending()
        except pluggy.PluginValidationError as error:
            name = self._manager.get_name(error.plugin) or "?"
            hooks = {hook for cls in SPEC_CLASSES for hook in vars(cls) if hook.startswith("hier_")}
            unknown = next((h for h in implemented(error.plugin) if h not in hooks), "?")
            raise PluginError(
                f"plugin {name!r} ({self._candidates[name].origin}) implements the hook {unknown!r}, which does not "
                f"exist{did_you_mean(unknown, hooks)}; see docs/plugins.md, or disable it with "
                f"`hier.plugins.{name}: false`."
            ) from error

    def _collect(self) -> None:
        for kind, expected in REGISTERED.items():
            for name, module, spec in self._answers(hook_of(kind), expected):
                options = getattr(spec, "options", NoOptions)
                if not is_dataclass(options) or not isinstance(options, type):
                    raise self._refuse(name, f"the options of {kind} {spec.name!r} are not a dataclass")
                self._claim(name, module, _with_page(spec, module) if isinstance(spec, Spec) else spec)

    def _answers(self, hook: str, expected: type) -> Iterable[tuple[str, str, Any]]:
        """(plugin, module, spec) of one registration hook, in load order, each checked."""
        caller: pluggy.HookCaller = getattr(self._manager.hook, hook)
        for implementation in caller.get_hookimpls():
            name = implementation.plugin_name
            try:
                answer: Any = implementation.function()
                specs: list[Any] = [answer] if isinstance(answer, expected) else list(answer)
            except Exception as error:
                raise load_failure(self._candidates[name], error) from error
            for spec in specs:
                if not isinstance(spec, expected):
                    raise self._refuse(name, f"{hook} returned {spec!r} instead of {expected.__name__}")
                if not getattr(spec, "name", ""):
                    raise self._refuse(name, f"{hook} returned a spec without a name")
                yield name, str(implementation.function.__module__), spec

    def _claim(self, plugin: str, module: str, spec: Registered) -> None:
        kind, name = spec.kind, spec.name
        known = self._specs[kind]
        if name in known:
            first, second = (self._candidates[p] for p in (self._provenance[(kind, name)].plugin, plugin))
            raise PluginError(
                f"two plugins provide the {kind} {name!r}: {first.name!r} ({first.origin}) and {second.name!r} "
                f"({second.origin}); disable one with `hier.plugins.{second.name}: false`."
            )
        candidate = self._candidates[plugin]
        known[name] = spec
        self._provenance[(kind, name)] = Provenance(plugin, candidate.distribution, candidate.version, module)

    def _refuse(self, plugin: str, problem: str) -> PluginError:
        return load_failure(self._candidates[plugin], TypeError(problem))

    def _where_else(self, name: str) -> str:
        """A hint when a plugin of that name is installed but off."""
        points = entry_points()
        off = {n for point in points.values() for n in (point.name, *contained(point))} - set(self._candidates)
        if name in off:
            return f"; the plugin {name!r} is installed but off: {_switch(name)}"
        idle = sorted(off & set(points) - {point.parent for point in self._candidates.values()})
        return f"; installed but not enabled: {', '.join(idle)} ({_switch(idle[0])})" if idle else ""


_HOSTS: dict[tuple[frozenset[tuple[str, bool]], Kind | None], PluginHost] = {}


def select(enabled: Mapping[str, bool]) -> list[Candidate]:
    """What a `hier.plugins` block switches on, in a stable order. A plugin's own line beats that of its package."""
    points = entry_points()
    check_known(enabled, points)
    return [candidate for point in points.values() for candidate in _members(point, enabled)]


def _with_page(spec: Spec, module: str) -> Spec:
    """The spec with the page that the docstring of its module names as `docs/….md`, unless it names one itself."""
    named = re.search(r"\bdocs/([\w/-]+\.md)", sys.modules[module].__doc__ or "")
    return replace(spec, doc=named[1]) if named and not spec.doc else spec


def _members(point: Candidate, enabled: Mapping[str, bool]) -> list[Candidate]:
    """What the block switches on of one entry point: itself, some of the plugins inside it, or nothing."""
    inner = contained(point)
    whole = enabled.get(point.name, False)
    if not inner or (whole and is_plugin(point)):
        return [point] if whole else []
    return [inner[name] for name in sorted(inner) if enabled.get(name, whole)]


def discover(enabled: Mapping[str, bool] | None = None) -> list[PluginStatus]:
    """What is installed, and what the block (the built-ins when None) does with it. A broken plugin is a status."""
    enabled = DEFAULT_ENABLED if enabled is None else enabled
    points = entry_points()
    check_known(enabled, points)
    found: list[tuple[Candidate, bool, str]] = []
    for point in points.values():
        try:
            members, broken = _members(point, enabled), ""
        except PluginError as error:
            members, broken = [], str(error)
        whole = broken or not contained(point) or point in members
        if whole or not (members or point.name in enabled):
            found.append((point, point in members, broken or point.blocked))
        else:
            found += [(inner, inner in members, inner.blocked) for inner in contained(point).values()]
    try:
        together = PluginHost([candidate for candidate, on, blocked in found if on and not blocked])
    except PluginError:
        together = None  # Which one it is, each alone will say.
    return [_status(*each, together) for each in found]


def _status(candidate: Candidate, enabled: bool, blocked: str, together: PluginHost | None) -> PluginStatus:
    provides: dict[str, tuple[str, ...]] = {}
    hooks: tuple[str, ...] = ()
    if enabled and not blocked:
        try:
            host = together or PluginHost([candidate])
            provides, hooks = host.provided_by(candidate.name), host.event_hooks(candidate.name)
        except PluginError as error:
            blocked = str(error)
    return PluginStatus(
        candidate.name,
        candidate.parent,
        candidate.module,
        candidate.distribution,
        candidate.version,
        enabled,
        blocked,
        provides,
        hooks,
    )


def _article(word: str) -> str:
    return "an" if word[0] in "aeiou" else "a"


def _switch(plugin: str) -> str:
    return (
        f"a recipe enables it with `hier.plugins.{plugin}: true`, a command without a recipe with `--enable {plugin}`"
    )
