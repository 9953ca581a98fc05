"""One word for one thing: words that the glossary sets aside are in no name of ours."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "glossary.md"
# Words of others in the parts that follow them.
THEIRS = {
    "verl_hier/ops/exchange/atif.py": {"trajectory", "trajectories"},  # the Agent Trajectory Interchange Format
    "plugins/verl_hier_plugins/estimators/portool.py": {"trajectory"},  # an option of the paper
}


def rows() -> Iterator[list[str]]:
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    for line in lines[lines.index("|---|---|---|") + 1 :]:
        yield [cell.strip() for cell in line.strip("|").split("|")]


def names(path: Path) -> Iterator[str]:
    """Names of classes, functions and annotated fields that a file defines."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id


def words(name: str) -> set[str]:
    return {part.lower() for part in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)}


def test_each_word_has_one_meaning_and_is_no_word_set_aside() -> None:
    defined = [row[0] for row in rows()]
    assert len(defined) == len(set(defined)) and all(len(row) == 3 and row[1] for row in rows())
    assert not set(defined) & set_aside()


def set_aside() -> set[str]:
    return {word.strip() for row in rows() for word in row[2].split(",") if word.strip()}


def test_no_name_has_a_word_that_is_set_aside() -> None:
    plural = {form for word in set_aside() for form in (word, f"{word}s", f"{word[:-1]}ies")}
    found = []
    for folder in (ROOT / "verl_hier", ROOT / "plugins"):
        for path in sorted(folder.rglob("*.py")):
            allowed = THEIRS.get(str(path.relative_to(ROOT)), set())
            found += [f"{path.name}: {name}" for name in names(path) if (words(name) & plural) - allowed]
    assert not found, found


def test_words_of_a_name() -> None:
    assert words("HeldRollouts") == {"held", "rollouts"}
    assert words("trajectory_weight") == {"trajectory", "weight"} and words("_Trajectories") == {"trajectories"}
