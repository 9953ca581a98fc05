"""The model of a recipe, as far as files say: is it there, how large is it, does it have a chat template?"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verl_hier.errors import FileError, RecipeError
from verl_hier.graph.bounded_reading import MIB, parse_json, read_json, require_regular
from verl_hier.recipe.paths import COLD_START

HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json")
LONGEST_HEADER = 100 * MIB
"""Bytes of the header of a file of weights, as in the library safetensors."""
_SIZE_IN_NAME = re.compile(r"(\d+(?:\.\d+)?)([bm])(?![a-z])", re.IGNORECASE)


@dataclass(frozen=True)
class ModelFacts:
    """What is known of a model without loading it.

    Attributes:
        path: as the recipe says it.
        local: the folder, None for a model that comes from a hub.
        parameters: number of parameters, None when nothing tells.
        missing: whether it is the model of a cold start, which has to be made first.
    """

    path: str
    local: Path | None
    parameters: int | None
    missing: bool = False

    @property
    def size(self) -> str:
        """`1.5B`, `203k`, or `size unknown`."""
        if self.parameters is None:
            return "size unknown"
        for unit, scale in (("B", 1e9), ("M", 1e6), ("k", 1e3)):
            if self.parameters >= scale:
                return f"{self.parameters / scale:.3g}{unit}"
        return str(self.parameters)


def model_facts(block: Mapping[str, Any], line: str) -> ModelFacts:
    """Look at `actor_rollout_ref.model` or `critic.model`.

    Args:
        block: the recipe block with `path` and `tokenizer_path`.
        line: its place in the recipe, for errors.

    Raises:
        RecipeError: when a local model or its tokenizer is missing.
    """
    path = str(block.get("path") or "")
    folder = Path(path).expanduser()
    if not folder.exists():
        if COLD_START in folder.parents:
            return ModelFacts(path, None, None, missing=True)
        if path and HUB_NAME.fullmatch(path) and not path.startswith("."):
            return ModelFacts(path, None, _size_in_name(path))
        raise RecipeError(
            f"{line}.path: there is no model at {path!r}; name a folder or a hub model, or make a small one there with "
            "`verl-hier coldstart RECIPE`."
        )
    if not (folder / "config.json").is_file():
        raise RecipeError(f"{line}.path: {path!r} has no config.json; it is not the folder of a Hugging Face model.")
    named = _json(folder / "config.json").get("architectures")
    if not (isinstance(named, list) and len(named) == 1):
        raise RecipeError(
            f"{line}.path: `architectures` in the config.json of {path!r} has to name one class, not {named!r}."
        )
    tokenizer = Path(str(block.get("tokenizer_path") or path)).expanduser()
    if tokenizer.exists() and not any((tokenizer / name).is_file() for name in _TOKENIZER_FILES):
        raise RecipeError(
            f"{line}.path: {str(tokenizer)!r} has no tokenizer files; put them there or set {line}.tokenizer_path."
        )
    return ModelFacts(path, folder, _parameters(folder))


def has_chat_template(facts: ModelFacts) -> bool:
    """Whether a local model can render chats; a hub model is taken to."""
    if facts.local is None or (facts.local / "chat_template.jinja").is_file():
        return True
    return bool(_json(facts.local / "tokenizer_config.json").get("chat_template"))


def _parameters(folder: Path) -> int | None:
    """From the headers of the weight files when there are some, else from the sizes in config.json."""
    counted = sum(_safetensors_parameters(path) for path in folder.glob("*.safetensors"))
    return counted or _parameters_of_config(_json(folder / "config.json"))


def _safetensors_parameters(path: Path) -> int:
    """0 for a file whose header cannot be read; loading the model says what is wrong with it."""
    try:
        size = require_regular(path)
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = parse_json(file.read(length).decode(), str(path)) if length <= min(size, LONGEST_HEADER) else {}
        shapes = [entry["shape"] for name, entry in header.items() if name != "__metadata__"]
        return sum(math.prod(int(width) for width in shape) for shape in shapes)
    except (FileError, OSError, ValueError, KeyError, TypeError, AttributeError):
        return 0


def _parameters_of_config(config: Mapping[str, Any]) -> int | None:
    """A decoder with gated MLP; a few per cent off at most for the usual families. None where sizes are missing."""
    try:
        hidden, layers, vocabulary = config["hidden_size"], config["num_hidden_layers"], config["vocab_size"]
        heads = config.get("num_attention_heads", 1)
        width = config.get("head_dim") or hidden // heads
        keys = config.get("num_key_value_heads", heads) * width
        attention = hidden * (2 * heads * width + 2 * keys)
        mlp = 3 * hidden * config.get("intermediate_size", 4 * hidden)
        embeddings = vocabulary * hidden * (1 if config.get("tie_word_embeddings") else 2)
        return int(embeddings + layers * (attention + mlp + 2 * hidden) + hidden)
    except (KeyError, TypeError, ValueError, ArithmeticError):
        return None


def _size_in_name(name: str) -> int | None:
    found = _SIZE_IN_NAME.search(name.rpartition("/")[2])
    if not found:
        return None
    return int(float(found[1]) * {"b": 1e9, "m": 1e6}[found[2].lower()])


def _json(path: Path) -> dict[str, Any]:
    try:
        content = read_json(path)
    except FileError:
        return {}
    return content if isinstance(content, dict) else {}
