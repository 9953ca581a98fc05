"""Bugs: one place of a function changed in its syntax tree, as a slip of the pen would."""

from __future__ import annotations

import ast
import copy
import pickle
from collections.abc import Callable, Iterator

COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.Gt),
    ast.LtE: (ast.Lt, ast.GtE),
    ast.Gt: (ast.GtE, ast.Lt),
    ast.GtE: (ast.Gt, ast.LtE),
    ast.Eq: (ast.NotEq,),
}
OPERATORS: dict[type[ast.operator], tuple[type[ast.operator], ...]] = {
    ast.Add: (ast.Sub, ast.Mult),
    ast.Sub: (ast.Add,),
    ast.Mult: (ast.Add, ast.Sub),
    ast.FloorDiv: (ast.Mod,),
    ast.Mod: (ast.FloorDiv,),
}
NAMES = {"min": "max", "max": "min", "n": "m", "m": "n"}
Change = Callable[[ast.AST], None]


def mutants(function: ast.FunctionDef) -> list[ast.FunctionDef]:
    """All functions that differ from one in a single place of its code, in a fixed order; its docstring stays."""
    found: list[ast.FunctionDef] = []
    whole = pickle.dumps(function)  # much faster than a deep copy
    parameters = {argument.arg for argument in function.args.args}
    for number, node in enumerate(_nodes(function)):
        for change in _changes(node, parameters):
            mutant: ast.FunctionDef = pickle.loads(whole)
            change(_nodes(mutant)[number])
            found.append(mutant)
    return found


def unwritten(function: ast.FunctionDef) -> ast.FunctionDef:
    """The function with its docstring and without its code."""
    left = copy.deepcopy(function)
    left.body[1:] = ast.parse("raise NotImplementedError").body
    return left


def _nodes(function: ast.FunctionDef) -> list[ast.AST]:
    return [node for statement in function.body[1:] for node in ast.walk(statement)]


def _changes(node: ast.AST, parameters: set[str]) -> Iterator[Change]:
    """What can be wrong at a node; each change works on its copy in another tree."""
    if isinstance(node, ast.Compare):
        for comparison in COMPARISONS.get(type(node.ops[0]), ()):
            yield lambda copied, new=comparison: setattr(copied, "ops", [new()])  # type: ignore[misc]
    elif isinstance(node, ast.BinOp):
        for operator in OPERATORS.get(type(node.op), ()):
            yield lambda copied, new=operator: setattr(copied, "op", new())  # type: ignore[misc]
    elif isinstance(node, ast.BoolOp):
        other = ast.Or if isinstance(node.op, ast.And) else ast.And
        yield lambda copied: setattr(copied, "op", other())
    elif isinstance(node, ast.Constant) and type(node.value) is int:
        for value in (node.value + 1, node.value - 1):
            yield lambda copied, new=value: setattr(copied, "value", new)  # type: ignore[misc]
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in NAMES:
        name = NAMES[node.id]
        if name in ("min", "max") or name in parameters:
            yield lambda copied: setattr(copied, "id", name)
    elif isinstance(node, ast.IfExp):
        yield _swap_branches


def _swap_branches(node: ast.AST) -> None:
    assert isinstance(node, ast.IfExp)
    node.body, node.orelse = node.orelse, node.body
