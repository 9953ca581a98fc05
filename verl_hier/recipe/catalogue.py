"""The recipes: which sizes, models and servers each of them offers, and which it refuses.

Everything here is read from the YAML files without composing them, so that listing the recipes is quick.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from verl_hier.errors import FileError, RecipeError, did_you_mean
from verl_hier.recipe import pairs
from verl_hier.recipe.pairs import folder
from verl_hier.recipe.yaml_files import read_yaml

# Words of our command line that stand for the Hydra groups below `hier/`.
CHOICES = ("size", "model", "server", "paper", "engine", "policies")
_CHOICE = re.compile(rf"(?:hier/)?({'|'.join(CHOICES)})=(.+)")
_FORMER_NAME = re.compile(r"(.+?)(?:_(1\.5b|7b)_(vllm|sglang)|_(cluster)|_(vllm_cpu)|_cpu)")
_FORMER_BASES = {"grpo_arithmetic": "grpo_python_tool"}


@dataclass(frozen=True)
class Size:
    """What goes with `hier/size`.

    Attributes:
        variant: the block of the files in `hier/environment` and `hier/prompt` with tasks and prompts of this size.
        models: choices of `hier/model`; the first is the default.
        servers: choices of `hier/server`; the first is the default.
    """

    variant: str
    models: tuple[str, ...]
    servers: tuple[str, ...]


_INSTRUCT = ("qwen2.5-1.5b-instruct", "qwen2.5-7b-instruct")
_GPU_SERVERS = ("vllm", "vllm_topk", "sglang")
SIZES: Mapping[str, Size] = {
    "cpu": Size("tiny", ("tiny", "smollm2-135m"), ("transformers", "vllm_cpu")),
    "node": Size("full", _INSTRUCT, _GPU_SERVERS),
    "cluster": Size("full", _INSTRUCT[::-1], _GPU_SERVERS),
}
# Models with tasks and prompts of their own: the block of the files in `hier/environment` and `hier/prompt` with them.
OWN_TASKS: Mapping[str, str] = {"smollm2-135m": "small_chat"}


@dataclass(frozen=True)
class Recipe:
    """One recipe: a file, or a pair of the table (`recipe.pairs`)."""

    name: str
    """What `verl-hier train` and `--config-name` call it."""
    path: Path
    """Its YAML file; for a pair the table's."""
    text: str
    """What the file says, or would say."""
    content: Any = None
    """The same as plain containers."""

    @property
    def shipped(self) -> bool:
        """Whether it is one of ours, which Hydra finds without being told where."""
        return self.path.parent == folder()

    @property
    def summary(self) -> str:
        """The comment on its first line."""
        first = self.text.partition("\n")[0]
        return first.lstrip("# ").strip() if first.startswith("#") else ""

    @cached_property
    def groups(self) -> Mapping[str, str]:
        """The choices below `hier/` in its defaults list, such as `{"method": "himac", "size": "cpu"}`."""
        defaults = self.content.get("defaults") if isinstance(self.content, Mapping) else None
        entries = [entry for entry in defaults if isinstance(entry, Mapping)] if isinstance(defaults, list) else []
        named = [(str(key), str(value)) for entry in entries for key, value in entry.items()]
        return {key.removeprefix("hier/"): value for key, value in named if key.startswith("hier/")}

    @property
    def method_and_environment(self) -> tuple[str, str] | None:
        """What its name is made of; None for a recipe with a name of its own."""
        method, environment = self.groups.get("method", ""), self.groups.get("environment", "")
        return (method, environment) if self.name == f"{method}_{environment}" else None

    @property
    def sizes(self) -> tuple[str, ...]:
        """The sizes that it offers; empty for a recipe that leaves data and model to the user."""
        if "variant" not in self.groups:
            return ()
        only = self._note.get("only_sizes")
        return tuple(size for size in SIZES if self._has(SIZES[size].variant) and (only is None or size in only))

    def servers(self, size: str) -> tuple[str, ...]:
        """The rollout servers that it offers at a size."""
        only = self._note.get("only_servers")
        return tuple(server for server in SIZES[size].servers if only is None or server in only)

    def models(self, size: str) -> tuple[str, ...]:
        """The models that it offers at a size: those whose tasks and prompts there are."""
        return tuple(name for name in SIZES[size].models if name not in OWN_TASKS or self._has(OWN_TASKS[name]))

    @property
    def policies(self) -> tuple[str, ...]:
        """The choices of `hier/policies` that it offers; `shared` is every method's."""
        found = pairs.blocks_of(folder() / "hier" / "method" / f"{self.groups.get('method')}.yaml")
        return tuple(form for form in pairs.FORMS if form == "shared" or form in found)

    def combinations(self) -> Iterator[tuple[str, ...]]:
        """Every combination that it offers, as words of the command line."""
        for size in self.sizes:
            for model in self.models(size):
                for server in self.servers(size):
                    yield f"size={size}", f"model={model}", f"server={server}"

    def require_offered(self, overrides: Sequence[str]) -> None:
        """Refuse a size, model or server that the recipe does not offer, or that do not go together.

        Names that are unknown altogether are left to Hydra, which lists the known ones, except those of `hier/paper`:
        the recipes have them as an optional group, which Hydra leaves out when there is no such file.

        Raises:
            RecipeError: naming the choice to change.
        """
        if self.shipped and pairs.pair_of(self.name):
            pairs.require_needs(self.name)
        given = {word[1]: word[2] for word in map(_CHOICE.fullmatch, overrides) if word}
        if (paper := given.get("paper")) is not None and paper not in (known := papers()):
            raise RecipeError(
                f"hier/paper: there are no authors' settings {paper!r}{did_you_mean(paper, known)}; they have the "
                "names of the recipes that take them over, and `none` takes none."
            )
        form, method = given.get("policies"), self.groups.get("method")
        if form in pairs.FORMS and form not in self.policies:
            raise RecipeError(
                f"hier/policies: the method {method!r} does not say who is played by which model with policies={form}; "
                f"take {_either('policies', self.policies)}, or write a policy for each role in hier.policies."
            )
        chosen = {**self.groups, **given}
        size = chosen.get("size", "")
        if size not in SIZES:
            return
        if self.sizes and size not in self.sizes:
            raise RecipeError(
                f"hier/size: the recipe {self.name} is not offered for size={size}; it has "
                f"{_either('size', self.sizes)} (`verl-hier recipes` shows what each recipe offers)."
            )
        offered = {
            "model": (self.models(size), [name for other in SIZES.values() for name in other.models]),
            "server": (self.servers(size), [name for other in SIZES.values() for name in other.servers]),
        }
        if "variant" in self.groups:
            chosen.setdefault("server", SIZES[size].servers[0])
        for kind, (fitting, names) in offered.items():
            name = chosen.get(kind)
            if name in names and name not in fitting:
                others = [other for other in self.sizes if name in (*self.models(other), *self.servers(other))]
                instead = f", or choose {_either('size', others)}" if others else ""
                raise RecipeError(
                    f"hier/{kind}: {kind}={name} does not go with {self.name} at size={size}; take "
                    f"{_either(kind, fitting)}{instead}."
                )

    @property
    def _note(self) -> Mapping[str, Any]:
        return _block(_block(self.content, "hier"), "recipe")

    def _has(self, variant: str) -> bool:
        groups = ((kind, self.groups.get(kind)) for kind in ("environment", "prompt"))
        return all(variant in pairs.scales_of(folder() / "hier" / kind / f"{name}.yaml") for kind, name in groups)


def _block(content: Any, key: str) -> Mapping[str, Any]:
    """The block below a key; empty where there is none. Hydra says what is wrong when it composes the recipe."""
    found = content.get(key) if isinstance(content, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def papers() -> list[str]:
    """The choices of `hier/paper`."""
    return sorted(path.stem for path in (folder() / "hier" / "paper").glob("*.yaml"))


def recipes() -> list[Recipe]:
    """The recipes that are listed, by name: those with a file, and the pairs that were tried."""
    return [shipped(name) for name in sorted({*_files(), *pairs.tried()})]


def find(reference: str) -> Recipe:
    """A shipped recipe by name, any pair of a method and an environment, or a user's own by the path of its YAML file.

    Raises:
        RecipeError: naming the nearest recipe when there is none of that name, or the command that replaced the name.
    """
    if reference.endswith((".yaml", ".yml")):
        path = Path(os.path.realpath(Path(reference).expanduser()))
        if not path.is_file():
            raise RecipeError(f"there is no recipe file {reference}; `verl-hier recipes` lists the shipped ones.")
        return _read(path)
    files = _files()
    if reference in files or pairs.pair_of(reference):
        return shipped(reference)
    renamed = _renamed(reference)
    if renamed:
        raise RecipeError(f"the recipe is now {renamed[0]}: verl-hier train {' '.join(renamed)}")
    raise RecipeError(
        f"there is no recipe {reference!r}{did_you_mean(reference, [*files, *pairs.tried()])}; `verl-hier recipes` "
        "lists them, and a path that ends in .yaml names one of your own."
    )


def translated(override: str) -> str:
    """An override with the short words of our command line in Hydra's: `size=node` becomes `hier/size=node`."""
    word = _CHOICE.fullmatch(override)
    return f"hier/{word[1]}={word[2]}" if word else override


@cache
def shipped(name: str) -> Recipe:
    """A recipe of the package, which stays as it is while a process runs: one with a file, or any pair."""
    files = _files()
    if name in files:
        return _read(files[name])
    # The sizes that it offers follow from its text, and which of them it has by default from these.
    first = _of_pair(name, "cpu")
    return first if "cpu" in first.sizes or not first.sizes else _of_pair(name, first.sizes[0])


def _of_pair(name: str, size: str) -> Recipe:
    import yaml

    text = pairs.text_of(name, size)
    return Recipe(name, pairs.table_file(), text, yaml.safe_load(text))


@cache
def _files() -> Mapping[str, Path]:
    """The files of shipped recipes by name."""
    return {path.stem: path for path in folder().glob("*.yaml") if path.name != pairs.TABLE}


def _read(path: Path) -> Recipe:
    try:
        return Recipe(path.stem, path, *read_yaml(path))
    except FileError as error:
        raise RecipeError(f"the recipe file cannot be read: {error}") from error


def _renamed(reference: str) -> tuple[str, ...]:
    """Recipe and choices of a name that once held size, model and server; empty for other names."""
    former = _FORMER_NAME.fullmatch(reference)
    if not former:
        return ()
    base, model, server, cluster, vllm_cpu = former.groups()
    base = _FORMER_BASES.get(base, base)
    if base not in _files() and not pairs.pair_of(base):
        return ()
    if vllm_cpu:
        return base, "server=vllm_cpu"
    size = "cluster" if cluster else "node"
    if not (cluster or model):
        return (base,)
    offered = find(base).servers(size)
    server = server if server in offered else offered[0]
    return base, f"size={size}", f"model=qwen2.5-{model or '7b'}-instruct", f"server={server}"


def _either(kind: str, names: Sequence[str]) -> str:
    return " or ".join(f"{kind}={name}" for name in names)
