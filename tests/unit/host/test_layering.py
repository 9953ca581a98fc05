"""Dependencies point one way: plugins use the core, the core knows no plugin, and verl is met in a few rooms only."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
CORE = ROOT / "verl_hier"
# The rooms that may import verl.
VERL_ROOMS = ("compat", "engines", "policies", "runtime_cpu")
# Under every room.
BOTTOM = {"errors", "host.specs"}
# What else of ours each room may import; the others may import all.
LAYERS = {
    "graph": set(),
    "credit": {"graph"},
    "environments": set(),
    "sandbox": set(),
    "rollout": {"environments", "graph"},
    "host": {"hookspecs", "graph"},
    "recipe": {"credit", "environments", "graph", "host", "rollout", "compat"},
    "training": {"credit", "graph", "host", "recipe"},
}
OPEN_TO_PLUGINS = {
    *("graph", "credit", "rollout", "environments", "sandbox", "training"),
    *("hookspecs", "host.specs", "errors"),
}
# A policy loss has verl's signature and must sum up as verl does; it runs in verl's workers.
POLICY_LOSS_TOOLS = {"verl.trainer.ppo.core_algos"}
ARRAYS = {"numpy", "torch"}


def imports(path: Path) -> Iterator[str]:
    """Absolute modules that a file imports at run time, anywhere in it."""
    for node in walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield node.module or ""
            yield from (f"{node.module}.{name.name}" for name in node.names if node.module == "verl_hier")


def walk(node: ast.AST) -> Iterator[ast.AST]:
    """`ast.walk` that leaves out what only a type checker sees."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        yield child
        yield from walk(child)


def files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.py"))


def ours(modules: Iterator[str]) -> set[str]:
    """Rooms of verl_hier among the modules; `host.specs` counts as one of its own."""
    inner = {module.removeprefix("verl_hier.") for module in modules if module.startswith("verl_hier.")} - {
        "__version__"
    }
    return {name if name == "host.specs" else name.partition(".")[0] for name in inner}


@pytest.mark.parametrize("path", files(CORE), ids=lambda path: str(path.relative_to(CORE)))
def test_only_a_few_rooms_import_verl(path: Path) -> None:
    room = path.relative_to(CORE).parts[0]
    if room in VERL_ROOMS:
        return
    met = {module for module in imports(path) if module.split(".")[0] == "verl"}
    assert not met, f"{path.relative_to(ROOT)} imports {', '.join(met)}; go through verl_hier/compat"


@pytest.mark.parametrize("path", files(CORE), ids=lambda path: str(path.relative_to(CORE)))
def test_the_core_knows_no_plugin(path: Path) -> None:
    assert not [module for module in imports(path) if module.startswith("verl_hier_plugins")]


@pytest.mark.parametrize("room", LAYERS)
def test_a_layer_imports_only_what_is_below_it(room: str) -> None:
    for path in files(CORE / room):
        above = ours(imports(path)) - LAYERS[room] - {room, *BOTTOM}
        assert not above, f"{path.relative_to(ROOT)} imports {', '.join(sorted(above))}"


def test_credit_is_pure_array_maths() -> None:
    for path in files(CORE / "credit"):
        others = {module.split(".")[0] for module in imports(path)} - set(sys.stdlib_module_names) - {"verl_hier", ""}
        assert others <= ARRAYS, f"{path.relative_to(ROOT)} imports {', '.join(sorted(others - ARRAYS))}"


@pytest.mark.parametrize("path", files(ROOT / "plugins"), ids=lambda path: str(path.relative_to(ROOT / "plugins")))
def test_plugins_use_the_open_rooms_only(path: Path) -> None:
    closed = ours(imports(path)) - OPEN_TO_PLUGINS
    assert not closed, f"{path.relative_to(ROOT)} imports {', '.join(sorted(closed))}"
    met = {module for module in imports(path) if module.split(".")[0] in ("verl", "ray")}
    assert met <= (POLICY_LOSS_TOOLS if path.parent.name == "losses" else set())


def test_importing_the_package_is_cheap() -> None:
    import subprocess

    code = "import sys; import verl_hier; assert not {'verl', 'torch', 'numpy', 'ray'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("path", [*files(CORE), *files(ROOT / "plugins")], ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_prints_but_the_command_line(path: Path) -> None:
    if "cli" in path.parts:
        return
    calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    assert not [call.lineno for call in calls if isinstance(call.func, ast.Name) and call.func.id == "print"]
