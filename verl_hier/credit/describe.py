"""What an estimator says of itself: its options with their docstrings, its needs, its documentation page."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from verl_hier.specs import EstimatorSpec, Spec


@dataclass(frozen=True)
class Option:
    """One field of an options dataclass."""

    name: str
    type: str
    default: str
    text: str


def options_of(cls: type) -> list[Option]:
    """The options of a part with the docstrings below their fields; inherited ones keep their text.

    Args:
        cls: a dataclass whose source is available.
    """
    texts: dict[str, str] = {}
    types: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if dataclasses.is_dataclass(base):
            for name, (kind, text) in _fields(base).items():
                types[name] = kind
                texts[name] = text or texts.get(name, "")
    return [Option(f.name, types.get(f.name, ""), _default(f), texts.get(f.name, "")) for f in dataclasses.fields(cls)]


def _fields(cls: type) -> dict[str, tuple[str, str]]:
    """Annotation and docstring of the fields that a class body declares."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(cls)))
    except (OSError, TypeError):
        return {}
    body = tree.body[0].body if isinstance(tree.body[0], ast.ClassDef) else []
    found: dict[str, tuple[str, str]] = {}
    for line, following in zip(body, [*body[1:], None], strict=True):
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
            text = ""
            if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
                text = " ".join(str(following.value.value).split())
            found[line.target.id] = (ast.unparse(line.annotation), text)
    return found


def _default(field: dataclasses.Field[Any]) -> str:
    if field.default is not dataclasses.MISSING:
        return repr(field.default)
    if field.default_factory is not dataclasses.MISSING:
        return repr(field.default_factory())
    return "required"


def needs_of(spec: EstimatorSpec) -> str:
    """Needs in a few words: columns beyond those that every table has, groups, a critic, a tree."""
    from verl_hier.trajectory.table import EPISODE_COLUMNS, TURN_COLUMNS

    standard = {*TURN_COLUMNS, *(f"episodes.{name}" for name in EPISODE_COLUMNS), "tokens.turn", "tokens.logprob"} - {
        "anchor"
    }
    needs = [column for column in spec.requires if column not in standard]
    flags = (("groups", spec.needs_groups), ("critic", spec.needs_critic), ("tree", spec.needs_tree))
    needs += [word for word, needed in flags if needed]
    return ", ".join(needs) or "none"


def page_of(spec: Spec) -> Path | None:
    """The documentation page in a source checkout; None in an installation without `docs/`."""
    page = Path(__file__).parents[2] / "docs" / spec.doc
    return page if spec.doc and page.is_file() else None


def describe(spec: EstimatorSpec) -> str:
    """The documentation page, or without one the summary, needs, source and options as text."""
    page = page_of(spec)
    if page is not None:
        return page.read_text(encoding="utf-8")
    lines = [
        f"{spec.name}: {spec.summary}",
        f"source: {spec.source} (confidence {spec.confidence})",
        f"needs: {needs_of(spec)}",
        *(f"  {option.name}: {option.type} = {option.default}  {option.text}" for option in options_of(spec.options)),
    ]
    return "\n".join(lines) + "\n"
