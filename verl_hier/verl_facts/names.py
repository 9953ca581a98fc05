"""Names that verl and torch know: registered functions and servers, supported loggers, optimisers.

They are read from the sources, because importing verl takes seconds. Only where other packages extend verl when it is
imported, the imported registries are asked too.
"""

from __future__ import annotations

import ast
import importlib
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache

from verl_hier.installed import package_folder, points_of


@dataclass(frozen=True)
class Registry:
    """One registry of verl."""

    written: Callable[[], frozenset[str]]
    """Reads the names from the source of verl."""
    place: str
    """`module:attribute` of the registry, a container of names, once verl is imported."""

    def names(self) -> frozenset[str]:
        """What is registered; imports verl only where another package extends it."""
        return self.written() | self.imported() if _extended() else self.written()

    def imported(self) -> frozenset[str]:
        """What is registered after verl is imported."""
        module, _, path = self.place.partition(":")
        found: object = importlib.import_module(module)
        for part in path.split("."):
            found = getattr(found, part)
        assert isinstance(found, Iterable)
        return frozenset(str(getattr(name, "value", name)) for name in found)


@cache
def _extended() -> bool:
    """Whether verl loads packages other than ours when it is imported."""
    others = [point for point in points_of("verl.plugins") if not point.value.startswith("verl_hier.")]
    return bool(others or os.environ.get("VERL_USE_EXTERNAL_MODULES"))


@cache
def policy_losses() -> frozenset[str]:
    return frozenset(_registered("trainer/ppo/core_algos.py", "register_policy_loss"))


@cache
def advantage_estimators() -> frozenset[str]:
    named = _registered("trainer/ppo/core_algos.py", "register_adv_est")
    return frozenset({*_members("trainer/ppo/core_algos.py", "AdvantageEstimator"), *named})


@cache
def rollout_servers() -> frozenset[str]:
    return frozenset(_registered("workers/rollout/replica.py", "RolloutReplicaRegistry.register"))


@cache
def loggers() -> frozenset[str]:
    tree = _tree("utils/tracking.py")
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "supported_backend":
            return frozenset(ast.literal_eval(node.value))
    return frozenset()


POLICY_LOSSES = Registry(policy_losses, "verl.trainer.ppo.core_algos:POLICY_LOSS_REGISTRY")
ADVANTAGE_ESTIMATORS = Registry(advantage_estimators, "verl.trainer.ppo.core_algos:ADV_ESTIMATOR_REGISTRY")
ROLLOUT_SERVERS = Registry(rollout_servers, "verl.workers.rollout.replica:RolloutReplicaRegistry._registry")
LOGGERS = Registry(loggers, "verl.utils.tracking:Tracking.supported_backend")


@cache
def optimisers() -> frozenset[str]:
    """The classes of `torch.optim`."""
    tree = ast.parse((package_folder("torch") / "optim" / "__init__.py").read_text())
    names = (name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for name in node.names)
    return frozenset(name.asname or name.name for name in names if (name.asname or name.name)[0].isupper())


@cache
def _tree(path: str) -> ast.Module:
    return ast.parse((package_folder("verl") / path).read_text())


def _registered(path: str, function: str) -> Iterator[str]:
    """First arguments of the calls of a function in a file of verl, where they are texts."""
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == function and node.args:
            first = node.args[0]
            if isinstance(first, ast.Constant) and isinstance(first.value, str):
                yield first.value


def _members(path: str, name: str) -> Iterator[str]:
    """Values of an enumeration in a file of verl."""
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.ClassDef) and node.name == name:
            values = (line.value for line in node.body if isinstance(line, ast.Assign))
            yield from (str(value.value) for value in values if isinstance(value, ast.Constant))
