"""What the process of an environment is given: an interpreter, modules of ours, and few environment variables.

It runs code of a world, which may say what it finds. So it gets the variables of `BASE` and those that are named, and
nothing else of what this process has; secrets among them are masked in all that it says (`environments.mask`).
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from verl_hier.environments.mask import NAMES, SHORTEST
from verl_hier.errors import RecipeError
from verl_hier.host.specs import EnvironmentSpec

BASE = frozenset(
    (
        *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TERM", "TMPDIR", "JAVA_HOME"),
        *("LD_LIBRARY_PATH", "VIRTUAL_ENV", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "PYTHONHASHSEED"),
        *("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "HF_HOME", "NLTK_DATA", "ALFWORLD_DATA"),
        # The provider of the sandbox, see `sandbox.scripts`.
        "VERL_HIER_SANDBOX",
    )
)
"""Names of the environment variables that every such process gets, beside all that begin with `LC_`."""
OURS = ("verl_hier", "pluggy")
"""What a process needs of this interpreter when it runs in another one."""
BOOTSTRAP = """
import importlib.machinery, json, runpy, sys
class Places:
    places = json.loads(sys.argv[1])
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name in cls.places:
            return importlib.machinery.PathFinder.find_spec(name, [cls.places[name]])
sys.meta_path.insert(0, Places)
module = sys.argv[2]
del sys.argv[1:3]
runpy.run_module(module, run_name="__main__", alter_sys=True)
"""
"""Lets another interpreter find a few packages of this one without the folders that they are in, and runs a module."""


@dataclass(frozen=True)
class ProcessOptions:
    """What the processes of environments are given; see docs/environments.md."""

    python: str = ""
    """Interpreter of another virtual environment that has the environment's packages; empty is this one."""
    variables: tuple[str, ...] = ()
    """Names of environment variables that they get beside the usual ones."""
    secrets: tuple[str, ...] = ()
    """Names of further ones, whose values are masked in all that an environment says."""

    def having(self, spec: EnvironmentSpec, options: Any) -> ProcessOptions:
        """These, with the secrets that the options of an environment name."""
        return replace(self, secrets=(*self.secrets, *secrets_of(spec, options)))

    def environ(self) -> dict[str, str]:
        """The environment variables of a process.

        Raises:
            RecipeError: when one that is named is not set, or a secret is too short to be masked.
        """
        for name in (*self.variables, *self.secrets):
            if not os.environ.get(name):
                raise RecipeError(
                    f"hier.environment: the environment variable {name}, which the recipe names, is not set where the "
                    "rollout workers run; set it there."
                )
        for name in self.secrets:
            if len(os.environ[name]) < SHORTEST:
                raise RecipeError(
                    f"hier.environment: the secret in the environment variable {name} has fewer than {SHORTEST} "
                    "characters, and masking it would spoil other texts; a key is longer."
                )
        kept = BASE.union(self.variables, self.secrets)
        given = {name: value for name, value in os.environ.items() if name in kept or name.startswith("LC_")}
        return {**given, NAMES: json.dumps(self.secrets), "OMP_NUM_THREADS": "1"}

    def command(self, module: str, arguments: Sequence[str], packages: Collection[str]) -> list[str]:
        """What runs a module; with `python`, the packages of these names come from this interpreter."""
        if not self.python:
            return [sys.executable, "-m", module, *arguments]
        places = {name: place for name in (*OURS, *packages) if (place := _place(name)) is not None}
        return [str(Path(self.python).expanduser()), "-c", BOOTSTRAP, json.dumps(places), module, *arguments]

    def search_path(self) -> dict[str, str]:
        """The variable with the folders in which modules are found; another interpreter has its own."""
        return {} if self.python else {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


def secrets_of(spec: EnvironmentSpec, options: Any) -> tuple[str, ...]:
    """Names of the environment variables with secrets that the options of an environment name."""
    found: list[str] = []
    for option in spec.secrets:
        named = getattr(options, option)
        found += [named] if isinstance(named, str) else named.values() if isinstance(named, Mapping) else named
    return tuple(name for name in found if name)


def _place(package: str) -> str | None:
    """The folder with a package or module, None for one that has no place."""
    spec = importlib.util.find_spec(package)
    if spec is None:
        return None
    if spec.submodule_search_locations:
        return str(Path(next(iter(spec.submodule_search_locations))).parent)
    return str(Path(str(spec.origin)).parent) if spec.has_location else None
