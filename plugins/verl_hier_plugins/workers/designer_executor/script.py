"""The designers' language: a small part of Python, parsed by `ast`, checked, and never executed.

`read(text, limits)` gives a `Design` or raises a `DesignError` with a name. The grammar stands in
docs/methods/metaagent_x.md. A hostile text of any size or depth does no harm: it is measured, then cut
into at most `MAX_TOKENS` words and signs, then parsed.
"""

from __future__ import annotations

import ast
import io
import itertools
import keyword
import re
import tokenize
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

from verl_hier_plugins.workers.designer_executor.design import (
    ACT,
    Call,
    Choice,
    Design,
    DesignError,
    Leave,
    Loop,
    Role,
    Sharing,
    Statement,
    TextOf,
)

MAX_TOKENS = 4000
MAX_DEPTH = 12
ROLE_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,31}")
RESERVED = ("Role", "designer", "range", "stop")
WORDS = (tokenize.NAME, tokenize.NUMBER)
SILENT = (tokenize.NL, tokenize.COMMENT, tokenize.INDENT, tokenize.DEDENT)
BUILTINS = ("eval", "exec", "compile", "open", "getattr", "setattr", "globals", "input")


@dataclass(frozen=True)
class Limits:
    """What a script may name and how much of everything.

    Attributes:
        roles: roles that are there without being defined.
        tools: tools that roles may be given; `act` always is.
        define_roles: whether scripts may define roles.
        max_bytes, max_steps, max_roles, max_turns: see the worker's options.
    """

    roles: Mapping[str, Role] = field(default_factory=dict)
    tools: tuple[str, ...] = (ACT,)
    define_roles: bool = True
    max_bytes: int = 16384
    max_steps: int = 16
    max_roles: int = 8
    max_turns: int = 12


def read(text: str, limits: Limits) -> Design:
    """The design that a script describes.

    Raises:
        DesignError: with the name of what is wrong with it; see `design.FAILURES`.
    """
    if len(text) > limits.max_bytes or len(text.encode("utf-8", "replace")) > limits.max_bytes:
        raise DesignError("too_long", f"the script is longer than {limits.max_bytes} bytes")
    source = expand(unfenced(text))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(source)
    except (SyntaxError, ValueError) as error:
        raise DesignError("syntax", f"the script cannot be read: {error}") from error
    except (RecursionError, MemoryError) as error:
        raise DesignError("too_deep", "the script is nested too deeply") from error
    return _Reader(limits).design(tree)


def unfenced(text: str) -> str:
    """What stands between the last two lines that are a fence (```), or the whole text."""
    lines = text.split("\n")
    fences = [number for number, line in enumerate(lines) if line.lstrip().startswith("```")]
    pairs = len(fences) // 2
    if not pairs:
        return text.strip()
    start, end = fences[2 * pairs - 2 : 2 * pairs]
    return "\n".join(lines[start + 1 : end])


# ---- calls without brackets ------------------------------------------------------------------------------------------


def expand(source: str) -> str:
    """Calls without brackets, `find apple`, as calls with them, `find('apple')`.

    Raises:
        DesignError: `syntax` or `too_long`.
    """
    lines = source.split("\n")
    for statement in reversed(list(_statements(source))):
        first, second, last = statement[0], statement[1], statement[-1]
        if first.start[0] != last.end[0] or keyword.iskeyword(first.string):
            continue
        row = first.start[0] - 1
        line = lines[row]
        order = " ".join(line[second.start[1] : last.end[1]].split())
        lines[row] = f"{line[: first.start[1]]}{first.string}({order!r}){line[last.end[1] :]}"
    return "\n".join(lines)


def _statements(source: str) -> Iterator[list[tokenize.TokenInfo]]:
    """Simple statements that are made of at least two words or numbers and nothing else."""
    current: list[tokenize.TokenInfo] = []
    depth = 0
    for token in _tokens(source):
        if token.type in SILENT:
            continue
        depth += (token.string in "([{") - (token.string in ")]}") if token.type == tokenize.OP else 0
        ends = token.type in (tokenize.NEWLINE, tokenize.ENDMARKER) or (depth == 0 and token.string in (";", ":"))
        if not ends:
            current.append(token)
            continue
        if len(current) > 1 and all(word.type in WORDS for word in current):
            yield current
        current = []


def _tokens(source: str) -> list[tokenize.TokenInfo]:
    try:
        generated = tokenize.generate_tokens(io.StringIO(source).readline)
        tokens = list(itertools.islice(generated, MAX_TOKENS + 1))
    except (tokenize.TokenError, SyntaxError, ValueError) as error:
        raise DesignError("syntax", f"the script cannot be read: {error.args[0] if error.args else error}") from error
    if len(tokens) > MAX_TOKENS:
        raise DesignError("too_long", f"the script has more than {MAX_TOKENS} words and signs")
    return tokens


# ---- from the syntax tree to the design ------------------------------------------------------------------------------


class _Reader:
    """Walks a syntax tree once, in order; knows the roles and names defined so far."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._roles: dict[str, Role] = dict(limits.roles)
        self._defined = 0
        self._names: set[str] = set()
        self._calls = 0

    def design(self, tree: ast.Module) -> Design:
        body, steps = self._block(tree.body, 0, False)
        if not steps or not self._calls:
            raise DesignError("empty", "the script calls no role")
        return Design(self._roles, body, steps)

    def _block(self, nodes: Sequence[ast.stmt], depth: int, in_loop: bool) -> tuple[tuple[Statement, ...], int]:
        """The statements, and how many calls they make in the worst case."""
        if depth > MAX_DEPTH:
            raise DesignError("too_deep", f"blocks are nested more than {MAX_DEPTH} deep", nodes[0].lineno)
        found: list[Statement] = []
        steps = 0
        for node in nodes:
            statement, more = self._statement(node, depth, in_loop)
            if statement is not None:
                found.append(statement)
            steps += more
            if steps > self._limits.max_steps:
                raise DesignError("too_many_steps", f"more than {self._limits.max_steps} calls", node.lineno)
        return tuple(found), steps

    def _statement(self, node: ast.stmt, depth: int, in_loop: bool) -> tuple[Statement | None, int]:
        if isinstance(node, ast.Expr):
            return self._expression(node.value)
        if isinstance(node, ast.Assign):
            return self._assignment(node, depth)
        if isinstance(node, ast.For):
            return self._loop(node, depth)
        if isinstance(node, ast.If):
            return self._choice(node, depth, in_loop)
        if isinstance(node, ast.Break) and in_loop:
            return Leave("loop"), 0
        if isinstance(node, ast.Pass):
            return None, 0
        raise self._refused(node)

    def _expression(self, node: ast.expr) -> tuple[Statement | None, int]:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            return None, 0  # a string on its own is a comment
        if isinstance(node, ast.Name):
            if node.id == "stop":
                return Leave("execution"), 0
            self._calls += 1
            return Call(self._known_role(node.id, node)), 1
        if isinstance(node, ast.Call):
            return self._call(node, None), 1
        raise self._refused(node)

    def _assignment(self, node: ast.Assign, depth: int) -> tuple[Statement | None, int]:
        target, value = node.targets[0], node.value
        if len(node.targets) != 1 or not isinstance(target, ast.Name) or not isinstance(value, ast.Call):
            raise self._refused(value if isinstance(value, ast.Lambda) else node)
        if isinstance(value.func, ast.Name) and value.func.id == "Role":
            if depth:
                raise DesignError("bad_role", "roles are defined outside of blocks", node.lineno)
            self._define(target.id, value)
            return None, 0
        if target.id in RESERVED:
            raise DesignError("forbidden", f"{target.id!r} means something else", node.lineno)
        call = self._call(value, target.id)
        self._names.add(target.id)
        return call, 1

    def _loop(self, node: ast.For, depth: int) -> tuple[Statement, int]:
        times = _range(node.iter)
        if times is None:
            raise DesignError("unbounded_loop", "a loop needs a bound: for NAME in range(NUMBER)", node.lineno)
        if not isinstance(node.target, ast.Name) or node.orelse:
            raise DesignError("forbidden", "a loop is `for NAME in range(NUMBER):` and a block", node.lineno)
        self._names.add(node.target.id)
        body, steps = self._block(node.body, depth + 1, True)
        # A loop that calls nobody takes time all the same.
        return Loop(node.target.id, times, body), times * max(steps, 1)

    def _choice(self, node: ast.If, depth: int, in_loop: bool) -> tuple[Statement, int]:
        test = node.test
        if not (
            isinstance(test, ast.Compare)
            and isinstance(test.ops[0], ast.In | ast.NotIn)
            and len(test.ops) == 1
            and isinstance(test.left, ast.Constant)
            and isinstance(test.left.value, str)
            and isinstance(test.comparators[0], ast.Name)
        ):
            raise DesignError("forbidden", 'a condition is `"text" in NAME` or `"text" not in NAME`', node.lineno)
        name = self._known_name(test.comparators[0])
        then, most = self._block(node.body, depth + 1, in_loop)
        otherwise, other = self._block(node.orelse, depth + 1, in_loop) if node.orelse else ((), 0)
        negated = isinstance(test.ops[0], ast.NotIn)
        return Choice(test.left.value, name.name, negated, then, otherwise), max(most, other)

    # ---- calls and roles ---------------------------------------------------------------------------------------------

    def _call(self, node: ast.Call, result: str | None) -> Call:
        if not isinstance(node.func, ast.Name) or node.keywords:
            raise self._refused(node)
        self._calls += 1
        role = self._known_role(node.func.id, node)
        order: list[str | TextOf] = []
        for number, argument in enumerate(node.args):
            order += ["\n"] if number else []
            order += self._parts(argument)
        return Call(role, tuple(order), result)

    def _parts(self, node: ast.expr) -> Iterator[str | TextOf]:
        """A string, a name, or an f-string of both."""
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        elif isinstance(node, ast.Name):
            yield self._known_name(node)
        elif isinstance(node, ast.JoinedStr):
            for value in node.values:
                if isinstance(value, ast.FormattedValue):
                    if not isinstance(value.value, ast.Name) or value.format_spec is not None:
                        raise DesignError("forbidden", "an f-string holds names only", node.lineno)
                    yield self._known_name(value.value)
                else:
                    yield from self._parts(value)
        else:
            raise self._refused(node)

    def _known_role(self, name: str, node: ast.expr) -> str:
        if name == "designer":
            raise DesignError("recursion", "a script cannot call the designer", node.lineno)
        if name == "__import__":
            raise DesignError("import", "nothing can be imported", node.lineno)
        if name in BUILTINS:
            raise DesignError("forbidden", f"there is no {name}", node.lineno)
        if name not in self._roles:
            raise DesignError("unknown_role", f"there is no role {name!r}", node.lineno)
        return name

    def _known_name(self, node: ast.Name) -> TextOf:
        if node.id not in self._names and node.id not in self._roles:
            raise DesignError("unknown_name", f"no role has written {node.id!r}", node.lineno)
        return TextOf(node.id)

    def _define(self, name: str, node: ast.Call) -> None:
        if not self._limits.define_roles:
            raise DesignError("bad_role", "this recipe has its own roles and no others", node.lineno)
        if not ROLE_NAME.fullmatch(name) or name in RESERVED or name in self._roles or name in self._names:
            raise DesignError("bad_role", f"{name!r} cannot be the name of a new role", node.lineno)
        self._defined += 1
        if self._defined > self._limits.max_roles:
            raise DesignError("too_many_roles", f"more than {self._limits.max_roles} roles", node.lineno)
        if len(node.args) != 1 or not (isinstance(node.args[0], ast.Constant) and isinstance(node.args[0].value, str)):
            raise DesignError("bad_role", "Role takes one text and then options", node.lineno)
        options = {option.arg or "**": option.value for option in node.keywords}
        unknown = set(options) - {"tools", "context", "turns"}
        if unknown:
            raise DesignError("bad_role", f"a role has no option {sorted(unknown)[0]!r}", node.lineno)
        self._roles[name] = Role(
            name,
            node.args[0].value,
            self._tools(options.get("tools")),
            self._context(options.get("context")),
            self._turns(options.get("turns")),
        )

    def _tools(self, node: ast.expr | None) -> tuple[str, ...]:
        if node is None:
            return ()
        if not isinstance(node, ast.List | ast.Tuple):
            raise DesignError("bad_role", "tools are a list of texts", node.lineno)
        tools = [item.value if isinstance(item, ast.Constant) else None for item in node.elts]
        for tool in tools:
            if not isinstance(tool, str) or (tool != ACT and tool not in self._limits.tools):
                raise DesignError("unknown_tool", f"there is no tool {tool!r}", node.lineno)
        return tuple(str(tool) for tool in tools)

    def _context(self, node: ast.expr | None) -> Sharing:
        if node is None:
            return "own"
        value = node.value if isinstance(node, ast.Constant) else None
        if value not in ("own", "kept", "shared"):
            raise DesignError("bad_role", 'context is "own", "kept" or "shared"', node.lineno)
        return cast(Sharing, value)

    def _turns(self, node: ast.expr | None) -> int | None:
        if node is None:
            return None
        value = node.value if isinstance(node, ast.Constant) else None
        if type(value) is not int or not 1 <= value <= self._limits.max_turns:
            raise DesignError("bad_role", f"turns is a number from 1 to {self._limits.max_turns}", node.lineno)
        return value

    # ---- what the language does not have -----------------------------------------------------------------------------

    def _refused(self, node: ast.stmt | ast.expr) -> DesignError:
        if isinstance(node, ast.Import | ast.ImportFrom):
            return DesignError("import", "nothing can be imported", node.lineno)
        if isinstance(node, ast.While | ast.AsyncFor):
            return DesignError("unbounded_loop", "a loop needs a bound: for NAME in range(NUMBER)", node.lineno)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            called = [call.func for call in ast.walk(node) if isinstance(call, ast.Call)]
            if node.name in {name.id for name in called if isinstance(name, ast.Name)}:
                return DesignError("recursion", f"{node.name!r} calls itself", node.lineno)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            return DesignError("function", "nothing but roles can be defined", node.lineno)
        return DesignError("forbidden", f"{type(node).__name__} is not part of the language", node.lineno)


def _range(node: ast.expr) -> int | None:
    """N of `range(N)`, None for anything else."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "range"):
        return None
    if len(node.args) != 1 or node.keywords or not isinstance(node.args[0], ast.Constant):
        return None
    value = node.args[0].value
    return value if type(value) is int else None
