"""YAML of a user's own, bounded before Hydra and OmegaConf see it: they copy what an alias repeats."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from verl_hier.errors import FileError, first_line
from verl_hier.graph.bounded_reading import MIB, read_text

LARGEST = MIB
"""Bytes of a recipe; a composed one has forty thousand."""
MOST_VALUES = 20_000
"""Values of a recipe with every alias written out; a composed one has a thousand."""
DEEPEST = 40


def read_yaml(path: Path) -> tuple[str, Any]:
    """The text of a YAML file, and its content.

    Raises:
        FileError: when it cannot be read, is no YAML, is nested too deeply or holds too many values.
    """
    import yaml

    text = read_text(path, LARGEST)
    try:
        content = yaml.safe_load(text)
        _count(content, 0, {})
    except RecursionError as error:
        raise FileError(f"{path} is nested too deeply: at most {DEEPEST} levels are read.") from error
    except OverflowError as error:
        raise FileError(
            f"{path} holds too many values: at most {MOST_VALUES} are read, aliases written out."
        ) from error
    except (yaml.YAMLError, ValueError, TypeError) as error:  # a date of month 13 is a ValueError
        raise FileError(f"{path} is not YAML: {first_line(error)}.") from error
    return text, content


def _count(value: Any, depth: int, known: dict[int, int]) -> int:
    """How many values there are with aliases written out.

    Raises:
        RecursionError: for a value that is nested too deeply, or holds itself.
        OverflowError: for more than `MOST_VALUES`.
    """
    if depth > DEEPEST:
        raise RecursionError
    if not isinstance(value, Mapping | list):
        return 1
    if id(value) not in known:
        inner = value.values() if isinstance(value, Mapping) else value
        known[id(value)] = 1 + sum(_count(item, depth + 1, known) for item in inner)
        if known[id(value)] > MOST_VALUES:
            raise OverflowError
    return known[id(value)]
