"""Dependencies point one way, without circles, and verl is imported in a few rooms only.

Imports below `if TYPE_CHECKING:` count like all others: a type that is needed is a dependency.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
CORE = ROOT / "verl_hier"
PLUGINS = ROOT / "plugins" / "verl_hier_plugins"
# The rooms that may import verl.
VERL_ROOMS = ("beside", "chat", "compat", "engines", "runtime_cpu", "verl_facts")
# Under every room.
BOTTOM = {"errors", "http_clients", "installed", "text", "host.constraints", "host.lazy", "host.specs", "__version__"}
# What else of ours each room may import. The top rooms (cli, ops) may import all, and nothing imports them.
LAYERS = {
    "graph": set(),
    "environments": {"graph"},  # what reads files of strangers
    "sandbox": set(),
    "local_sandbox": {"sandbox"},
    "credit": {"graph"},
    "hookspecs": {"credit", "graph"},
    "rollout": {"environments", "graph"},
    "host": {"hookspecs", "graph"},
    "verl_facts": set(),
    "training": {"credit", "graph", "host"},
    "chat": {"environments", "graph", "host", "rollout", "verl_facts"},
    "recipe": {"chat", "credit", "environments", "graph", "host", "rollout", "sandbox", "training", "verl_facts"},
    "runtime_cpu": {"chat", "served", "verl_facts"},
    "engines": {"recipe", "runtime_cpu", "training"},
    "compat": {
        "chat",
        "environments",
        "graph",
        "host",
        "recipe",
        "rollout",
        "served",
        "training",
        "verl_facts",
    },
    "beside": {"compat", "engines", "graph", "host", "recipe", "training"},
    "coldstart": {"chat", "compat", "environments", "graph", "host", "recipe", "rollout", "served"},
    "served": {"graph", "rollout"},
    "rewards": {"environments", "rollout", "served"},
    "viewer": {"credit", "graph"},
    "lab": {"credit", "environments", "graph", "host", "rollout", "training"},
    "testing": {"credit", "environments", "graph", "host", "hookspecs", "rollout", "sandbox", "training"},
}
# The upper floor: plugged into the rooms below, which do without it.
UPPER = ("beside", "coldstart", "engines", "lab", "local_sandbox", "runtime_cpu", "viewer")
# `served`: a worker may ask another model than its policy, such as one that embeds texts.
OPEN_TO_PLUGINS = {
    *("graph", "credit", "rollout", "environments", "sandbox", "served", "training"),
    *("hookspecs", "host.constraints", "host.lazy", "host.specs", "errors", "http_clients", "text"),
}
# A policy loss has verl's signature and must sum up as verl does; it runs in verl's workers.
POLICY_LOSS_TOOLS = {"verl.trainer.ppo.core_algos"}
ARRAYS = {"numpy", "torch"}


@cache
def nodes(path: Path) -> list[ast.AST]:
    """The syntax tree of a file; each is read once."""
    return [*ast.walk(ast.parse(path.read_text()))]


def imports(path: Path) -> Iterator[str]:
    """Absolute modules that a file imports, anywhere in it."""
    yield from imported(nodes(path))


def imported(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Absolute modules, and `package.name` for every name that is imported from a package of ours."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield node.module or ""
            yield from (f"{node.module}.{name.name}" for name in node.names if node.module == "verl_hier")


def files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.py"))


def ours(modules: Iterable[str]) -> set[str]:
    """Rooms of verl_hier among the modules; `host.specs` and `host.constraints` count as rooms of their own."""
    inner = {module.removeprefix("verl_hier.") for module in modules if module.startswith("verl_hier.")}
    return {name if name in BOTTOM else name.partition(".")[0] for name in inner}


def modules() -> dict[str, Path]:
    """Every module of ours by its import name."""
    paths = ((path, path.relative_to(folder.parent)) for folder in (CORE, PLUGINS) for path in files(folder))
    return {".".join(name.with_suffix("").parts).removesuffix(".__init__"): path for path, name in paths}


def on_import(node: ast.AST) -> Iterator[ast.AST]:
    """What runs, or what a type checker sees, when a module is imported: everything outside of functions."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield child
            yield from on_import(child)


def module_graph() -> dict[str, set[str]]:
    """The modules of ours that each module imports when it is imported itself."""
    known = modules()
    graph: dict[str, set[str]] = {}
    for name, path in known.items():
        found: set[str] = set()
        for node in on_import(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                whole = {alias.name: f"{node.module}.{alias.name}" for alias in node.names}
                found |= {module if module in known else str(node.module) for module in whole.values()}
        graph[name] = (found & known.keys()) - {name}
    return graph


def room_graph() -> dict[str, set[str]]:
    """What each room, and each module outside of them, imports of the others, in functions and for types too."""
    # The hooks are the host's surface; they lie outside of its folder, where plugins import them from.
    home = {"hookspecs": "host"}
    found: dict[str, set[str]] = {}
    for path in files(CORE):
        room = path.relative_to(CORE).parts[0].removesuffix(".py")
        named = {module.split(".")[1] for module in imports(path) if module.startswith("verl_hier.")}
        mine = home.get(room, room)
        found.setdefault(mine, set()).update({home.get(name, name) for name in named} - {mine, "__version__"})
    return found


def circles(graph: Mapping[str, set[str]]) -> set[frozenset[str]]:
    """The largest sets of modules in which each reaches all others."""
    reach = {name: reachable(graph, name) for name in graph}
    return {frozenset(other for other in reach[name] if name in reach[other]) for name in graph if name in reach[name]}


def reachable(graph: Mapping[str, set[str]], start: str) -> set[str]:
    """What one comes to from a module in one step or more."""
    seen: set[str] = set()
    ahead = [*graph[start]]
    while ahead:
        name = ahead.pop()
        if name not in seen:
            seen.add(name)
            ahead += graph[name]
    return seen


def test_no_module_imports_itself_through_others() -> None:
    assert [sorted(ring) for ring in circles(module_graph())] == []


def test_a_circle_is_found_under_type_checking_and_not_in_functions() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": set()}) == {frozenset("abc")}
    source = "if TYPE_CHECKING:\n    import a\nclass C:\n    import b\n    def f():\n        import c\n"
    assert list(imported(on_import(ast.parse(source)))) == ["a", "b"]


def test_only_a_few_rooms_import_verl() -> None:
    """The others go through verl_hier/compat."""
    outside = [path for path in files(CORE) if path.relative_to(CORE).parts[0] not in VERL_ROOMS]
    assert not [path for path in outside if any(name.split(".")[0] == "verl" for name in imports(path))]


def test_the_core_knows_no_plugin() -> None:
    assert not [path for path in files(CORE) if any(name.startswith("verl_hier_plugins") for name in imports(path))]


@pytest.mark.parametrize("room", LAYERS)
def test_a_layer_imports_only_what_is_below_it(room: str) -> None:
    for path in files(CORE / room) or [CORE / f"{room}.py"]:
        above = ours(imports(path)) - LAYERS[room] - {room, *BOTTOM}
        assert not above, f"{path.relative_to(ROOT)} imports {', '.join(sorted(above))}"


def test_no_room_imports_itself_through_others() -> None:
    """Imports within functions and for types count, and so do the modules that every room may import."""
    assert [sorted(ring) for ring in circles(room_graph())] == []


@pytest.mark.parametrize("room", sorted({*LAYERS} - {*UPPER}))
def test_the_lower_floor_knows_nothing_of_the_upper_one(room: str) -> None:
    assert not {*UPPER} & LAYERS[room]


@pytest.mark.parametrize("room", sorted({*LAYERS} - {*UPPER}))
def test_the_lower_floor_names_no_module_of_the_upper_one(room: str) -> None:
    """What is imported by its name in a string is imported as well; `host/renamed.py` tells users of new names."""
    named = re.compile(rf"verl_hier[./]({'|'.join(UPPER)})[.:/]\S+")
    for path in {*(files(CORE / room) or [CORE / f"{room}.py"])} - {CORE / "host/renamed.py"}:
        texts = [node for node in nodes(path) if isinstance(node, ast.Constant)]
        found = [text.lineno for text in texts if isinstance(text.value, str) and named.fullmatch(text.value)]
        assert not found, f"{path.relative_to(ROOT)}, line {found[0]}"


def test_every_room_has_its_layer() -> None:
    rooms = {path.relative_to(CORE).parts[0].removesuffix(".py") for path in files(CORE)}
    assert rooms - LAYERS.keys() == {"__init__", "errors", "http_clients", "installed", "text", "cli", "ops"}


def test_credit_is_pure_array_maths() -> None:
    for path in files(CORE / "credit"):
        others = {module.split(".")[0] for module in imports(path)} - set(sys.stdlib_module_names) - {"verl_hier", ""}
        assert others <= ARRAYS, f"{path.relative_to(ROOT)} imports {', '.join(sorted(others - ARRAYS))}"


def test_plugins_use_the_open_rooms_only() -> None:
    for path in files(ROOT / "plugins"):
        closed = ours(imports(path)) - OPEN_TO_PLUGINS
        assert not closed, f"{path.relative_to(ROOT)} imports {', '.join(sorted(closed))}"
        met = {module for module in imports(path) if module.split(".")[0] in ("verl", "ray")}
        assert met <= (POLICY_LOSS_TOOLS if path.parent.name == "losses" else set()), path


def test_importing_the_package_is_cheap() -> None:
    code = "import sys; import verl_hier; assert not {'verl', 'torch', 'numpy', 'ray'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_nothing_prints_but_the_command_line() -> None:
    for path in [*files(CORE), *files(ROOT / "plugins")]:
        calls = [node for node in nodes(path) if isinstance(node, ast.Call) and "cli" not in path.parts]
        printed = [call.lineno for call in calls if isinstance(call.func, ast.Name) and call.func.id == "print"]
        assert not printed, f"{path.relative_to(ROOT)}, line {printed[0]}"
