"""Descriptions of parts: options with their documentation strings, the documentation page, an estimator's needs."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from verl_hier.host.constraints import ALIASES, Template

if TYPE_CHECKING:
    from verl_hier.host.specs import EstimatorSpec, Spec


@dataclass(frozen=True)
class Option:
    """One field of an options dataclass."""

    name: str
    type: str
    default: str
    text: str


def options_of(cls: type) -> list[Option]:
    """The options of a part, each with the string literal below its field; inherited options keep theirs.

    Args:
        cls: a dataclass. Where its source is not available the types are those of its annotations, without texts.
    """
    declared: dict[str, tuple[str, str]] = {}
    for base in reversed(cls.__mro__):
        if dataclasses.is_dataclass(base):
            for name, (kind, text) in _fields(base).items():
                declared[name] = kind, text or declared.get(name, ("", ""))[1]
    options = []
    for field in dataclasses.fields(cls):
        kind, text = declared.get(field.name, (_plain(field.type), ""))
        options.append(Option(field.name, kind, _default(field), text))
    return options


def _plain(hint: Any) -> str:
    return hint.__name__ if isinstance(hint, type) else str(hint).replace("typing.", "")


def _fields(cls: type) -> dict[str, tuple[str, str]]:
    """Annotation and docstring of the fields that a class body declares."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(cls)))
    except (OSError, TypeError, SyntaxError):
        return {}
    body = tree.body[0].body if tree.body and isinstance(tree.body[0], ast.ClassDef) else []
    found: dict[str, tuple[str, str]] = {}
    for line, following in zip(body, [*body[1:], None], strict=True):
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
            text = ""
            if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
                text = " ".join(str(following.value.value).split())
            found[line.target.id] = (_in_words(ast.unparse(line.annotation)), text)
    return found


def _in_words(annotation: str) -> str:
    """An annotation with its constraints in words: `ZeroToOne` is `float from 0 to 1`."""
    annotation = re.sub(r"Annotated\[str, Template\(.*?\)\]", "Prompt", annotation)
    return re.sub(rf"\b({'|'.join(ALIASES)})\b", lambda found: _alias(ALIASES[found[0]]), annotation)


def _alias(hint: Any) -> str:
    base, constraint = get_args(hint)
    return "template" if isinstance(constraint, Template) else f"{base.__name__} {constraint}"


def _default(field: dataclasses.Field[Any]) -> str:
    if field.default is not dataclasses.MISSING:
        return repr(field.default)
    if field.default_factory is not dataclasses.MISSING:
        return repr(field.default_factory())
    return "required"


def needs_of(spec: EstimatorSpec) -> str:
    """Needs in a few words: columns beyond those that every table has, groups, a critic, a tree."""
    from verl_hier.graph.turn_table import EPISODE_COLUMNS, TURN_COLUMNS

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
