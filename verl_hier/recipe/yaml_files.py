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
        repeated = _repeated(yaml.compose(text, yaml.SafeLoader), set())
    except RecursionError as error:
        raise FileError(f"{path} is nested too deeply: at most {DEEPEST} levels are read.") from error
    except OverflowError as error:
        raise FileError(
            f"{path} holds too many values: at most {MOST_VALUES} are read, aliases written out."
        ) from error
    except yaml.MarkedYAMLError as error:
        raise FileError(_marked(path, text, error)) from error
    except (yaml.YAMLError, ValueError, TypeError) as error:  # a date of month 13 is a ValueError
        raise FileError(f"{path} is not YAML: {first_line(error)}.") from error
    if repeated is not None:
        key, first, second = repeated
        where = f"twice in line {first}" if first == second else f"twice, in line {first} and in line {second}"
        raise FileError(f"{path}: the key {key!r} stands {where}; keep one of them.")
    return text, content


def line_of(path: Path, key: str) -> int | None:
    """The line of a YAML file in which a key stands, such as `hier.sampler.plans`; None where it does not.

    Raises:
        FileError: as `read_yaml`.
    """
    import yaml

    node: Any = yaml.compose(read_yaml(path)[0], yaml.SafeLoader)
    line = None
    for word in key.split("."):
        entries = node.value if isinstance(node, yaml.MappingNode) else ()
        found = [(name, value) for name, value in entries if name.value == word]
        if not found:
            return None
        line, node = found[0][0].start_mark.line + 1, found[0][1]
    return line


def _marked(path: Path, text: str, error: Any) -> str:
    """The sentence of an error of YAML, with the line that it is about and where what it is part of begins."""
    mark = error.problem_mark or error.context_mark
    said = " ".join(filter(None, [error.problem or error.context]))
    if mark is None:
        return f"{path} is not YAML: {said}."
    lines = text.splitlines()
    shown = lines[mark.line].strip() if mark.line < len(lines) else ""
    began = error.context_mark
    part = ""
    if began is not None and began.line != mark.line and began.line < len(lines):
        part = f"; what it is part of begins in line {began.line + 1}, {lines[began.line].strip()!r:.60}"
    return f"{path} is not YAML: line {mark.line + 1}, {shown!r:.60}: {said}{part}."


def _repeated(node: Any, known: set[int]) -> tuple[str, int, int] | None:
    """The first key that a mapping has twice, with the lines of both; None where there is none.

    PyYAML keeps the last of them without a word, and OmegaConf refuses them without saying which.
    """
    import yaml

    if node is None or id(node) in known:
        return None
    known.add(id(node))
    inner: list[Any] = []
    if isinstance(node, yaml.MappingNode):
        lines: dict[str, int] = {}
        for key, value in node.value:
            line = key.start_mark.line + 1
            if isinstance(key, yaml.ScalarNode) and key.value in lines and key.value != "<<":
                return str(key.value), lines[key.value], line
            if isinstance(key, yaml.ScalarNode):
                lines[key.value] = line
            inner.append(value)
    elif isinstance(node, yaml.SequenceNode):
        inner = list(node.value)
    return next((found for each in inner if (found := _repeated(each, known)) is not None), None)


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
