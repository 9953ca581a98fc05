"""Functions that are known by their names: imported when they are first called, or named by a recipe."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from verl_hier.errors import RecipeError, did_you_mean, raised_at


@dataclass(frozen=True)
class LazyFunction:
    """A function that is known by its name and imported when it is first called; see `lazy`.

    Attributes:
        reference: `package.module:function`.
        modules: importable names that it needs besides its own module.
        part: who asks for it, with the recipe line: `hier.environment.name: search`.
        extra: the pip extra that brings what it imports, or empty.
    """

    reference: str
    modules: tuple[str, ...] = ()
    part: str = ""
    extra: str = ""

    def __post_init__(self) -> None:
        module, _, name = self.reference.partition(":")
        object.__setattr__(self, "__module__", module)
        object.__setattr__(self, "__qualname__", name)

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        """Import the function and call it."""
        return self.resolve()(*args, **keywords)

    def resolve(self) -> Callable[..., Any]:
        """Import the function.

        Raises:
            RecipeError: when a package of the pip extra, or one of `modules`, is missing or cannot be imported.
        """
        module, _, name = self.reference.partition(":")
        try:
            for needed in self.modules:
                importlib.import_module(needed)
            found: Any = importlib.import_module(module)
        except ImportError as error:
            if not self.extra and not self.modules:
                raise
            cure = (
                f"pip install 'verl-hier[{self.extra}]'"
                if self.extra
                else "install it, or let hier.rollout.process.python name an interpreter that has it"
            )
            raise RecipeError(f"{self.part} cannot be imported ({error}); {cure}.") from error
        for part in name.split("."):
            found = getattr(found, part)
        function: Callable[..., Any] = found
        return function


def lazy(reference: str) -> Callable[..., Any]:
    """The function or class `package.module:name`, imported when it is first called.

    A spec is registered in every process, but its part runs in one of them. A plugin whose part imports heavy packages
    declares `tasks=lazy("my_package.tasks:tasks")`; for `factory`, and for the `function` of a policy loss, the text
    alone is enough.
    """
    return LazyFunction(reference)


def make_lazy(spec: Any, *names: str) -> None:
    """Replace fields of a spec that name a function by the function."""
    for name in names:
        if isinstance(getattr(spec, name), str):
            object.__setattr__(spec, name, lazy(getattr(spec, name)))


def named_function(name: str, where: str) -> Callable[..., Any]:
    """The function that a recipe names as `package.module:function`.

    Raises:
        RecipeError: naming the recipe line `where`, when there is no such function or its module cannot be imported.
    """
    module, _, path = name.partition(":")
    if not (module and path):
        raise RecipeError(f"{where}: {name!r} names no function; write `package.module:function`.")
    try:
        found: Any = importlib.import_module(module)
    except (Exception, SystemExit) as error:  # whatever a stranger's module does at import
        text = (str(error).strip() or type(error).__name__).splitlines()[0]
        absent = isinstance(error, ModuleNotFoundError) and error.name == module.partition(".")[0]
        file = f"{module.replace('.', '/')}.py"
        cure = (
            f"; the file {file} is in this folder: put `PYTHONPATH=.` before the command"
            if absent and os.path.isfile(file)
            else ""
        )
        place = "" if absent else raised_at(error)
        raise RecipeError(f"{where}: module {module!r} cannot be imported: {text}{place}{cure}.") from error
    for part in path.split("."):
        if not hasattr(found, part):
            known = (word for word in vars(found) if not word.startswith("_"))
            raise RecipeError(f"{where}: {module!r} has no {path!r}{did_you_mean(part, known)}.")
        found = getattr(found, part)
    if not callable(found):
        raise RecipeError(f"{where}: {name!r} is a {type(found).__name__} and no function.")
    function: Callable[..., Any] = found
    return function
