"""Documentation that says what the code says: pages, links, options, metric keys, the example graph."""

from __future__ import annotations

import ast
import asyncio
import importlib
import importlib.util
import json
import pkgutil
import re
import sys
from pathlib import Path

import pytest

import verl_hier_plugins
from tests.fixtures.corridor import Corridor
from verl_hier.graph import EPISODE_COLUMNS, TURN_COLUMNS, graph_rows
from verl_hier.host.describe import options_of
from verl_hier.host.manager import PluginHost
from verl_hier.host.specs import KINDS, NoOptions
from verl_hier.testing.rollout import roll_out_scripted
from verl_hier.training.options import GuardOptions
from verl_hier_plugins.samplers.independent import Independent
from verl_hier_plugins.workers.designer_executor.design import FAILURES
from verl_hier_plugins.workers.react import React, ReactOptions

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
PAGES = [*sorted(DOCS.rglob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
SPECS = [spec for kind in KINDS for spec in PluginHost.load({"builtin": True}).specs(kind).values()]


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def test_every_plugin_folder_is_among_the_specs():
    """The host skips nothing, so that the next test sees every page that is promised."""
    rooms = [module.name for module in pkgutil.iter_modules(verl_hier_plugins.__path__) if module.ispkg]
    parts = {
        part.name
        for room in rooms
        for part in pkgutil.iter_modules([str(Path(next(iter(verl_hier_plugins.__path__))) / room)])
    }
    loaded = PluginHost.load({"builtin": True}).plugins
    assert {name for name in parts if not name.startswith("_")} == set(loaded)


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: f"{spec.kind}-{spec.name}")
def test_the_page_of_a_part_exists(spec):
    assert spec.doc, f"{spec.kind} {spec.name} names no page"
    assert (DOCS / spec.doc).is_file(), f"{spec.doc} does not exist"
    page = (DOCS / spec.doc).read_text(encoding="utf-8")
    assert f"<!-- generated: {spec.kind} {spec.name} -->" in page, f"{spec.doc} does not show its options"


WITHOUT_A_PAGE = {"losses", "value_heads", "probes", "rollout_servers", "engines", "trainer_extensions"}
"""Rooms whose parts are told about on the page of what they serve."""


def test_the_docstring_of_every_part_begins_with_its_page():
    pages = {f"docs/{spec.doc}" for spec in SPECS}
    for module in sorted((ROOT / "plugins/verl_hier_plugins").glob("*/*")):
        file = module / "__init__.py" if module.is_dir() else module
        if module.name.startswith("_") or not file.is_file():
            continue
        paragraph = ast.get_docstring(ast.parse(file.read_text("utf-8"))).partition("\n\n")
        named = re.findall(r"docs/[\w/]+\.md", paragraph[0] + paragraph[2][:200])
        assert named and ({*named} & pages or WITHOUT_A_PAGE & {*module.parts}), f"{name_of(file)} names {named}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_relative_links_resolve(page):
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target in re.findall(r"!?\[[^\]]*\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target) or target.startswith("#"):
            continue
        path, _, fragment = target.partition("#")
        there = (page.parent / path).resolve()
        assert there.exists(), f"{name_of(page)} links to {target}"
        if fragment:
            assert fragment in anchors(there), f"{name_of(page)} links to {target}"


def anchors(page: Path) -> set[str]:
    """Fragments of a page's headings, as code hosts make them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", sorted(path for path in DOCS.rglob("*") if path.suffix == ".md"), ids=name_of)
def test_pages_are_finished(page):
    text = page.read_text(encoding="utf-8")
    assert "TODO" not in text and "FIXME" not in text
    assert text.startswith("# ") and text.endswith("\n")
    fences = [line for line in text.splitlines() if "```" in line]
    assert all(re.fullmatch(r"\s*```\w*", fence) for fence in fences), f"a fence shares its line: {fences}"


# ---- generated text -------------------------------------------------------------------------------------------------

SCRIPT = importlib.util.spec_from_file_location("docs_script", ROOT / "scripts" / "docs.py")
sys.path.insert(0, str(ROOT / "scripts"))
docs_script = importlib.util.module_from_spec(SCRIPT)
SCRIPT.loader.exec_module(docs_script)


def test_every_world_is_in_the_table():
    measured = json.loads((ROOT / "docs" / "worlds.json").read_text())["worlds"]
    without_one = {"prompt", "gym_text"}
    assert set(measured) == {spec.name for spec in SPECS if spec.kind == "environment"} - without_one, (
        "run scripts/bench/all_worlds.py"
    )


def test_generated_text_is_up_to_date():
    stale = [name_of(page) for page in docs_script.stale()]
    assert not stale, f"run `python scripts/docs.py`: {', '.join(stale)}"


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: f"{spec.kind}-{spec.name}")
def test_the_page_of_a_part_has_its_facts_and_options(spec):
    """Together with the test above: the option tables of the pages are the dataclasses."""
    text = (DOCS / spec.doc).read_text("utf-8")
    block = text.partition(f"<!-- generated: {spec.kind} {spec.name} -->")[2].partition("<!-- end -->")[0]
    assert f"`hier.{spec.kind}.name: {spec.name}`" in block
    for option in options_of(spec.options):
        assert option.text, f"{spec.kind} {spec.name}: {option.name} has no docstring"
        assert f"| `{option.name}` | " in block and option.text.replace("|", "\\|") in block


def test_the_failures_of_designs_are_those_of_the_code():
    text = (DOCS / "methods/metaagent_x.md").read_text("utf-8")
    rows = re.findall(r"^\| `design_(\w+)` \| ([^|]*) \|$", text, re.MULTILINE)
    assert dict(rows) == FAILURES


def test_guard_settings_are_the_dataclass():
    first = (DOCS / "guards.md").read_text("utf-8").split("## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| .+ \| `(.+)` \| .+ \|$", first, re.MULTILINE)
    assert rows == [(name, repr(value)) for name, value in vars(GuardOptions()).items()]


# ---- metrics ---------------------------------------------------------------------------------------------------------

SOURCES = [*sorted((ROOT / "verl_hier").rglob("*.py")), *sorted((ROOT / "plugins").rglob("*.py"))]
KEY = re.compile(r'(?<![\w/])f?"(hier/[\w/<>{}.]+)"')


def pattern(key: str) -> str:
    """A key with every placeholder, `{name}` in code and `<name>` in the glossary, as `<>`."""
    return re.sub(r"\{[^}]*\}|<[^>]*>", "<>", key)


def emitted() -> dict[str, str]:
    """Pattern of each key that the sources spell, and where. A literal that ends in `/` is a prefix, not a key."""
    found = {}
    for path in SOURCES:
        for key in KEY.findall(path.read_text(encoding="utf-8")):
            if not key.endswith("/"):
                found[pattern(key)] = name_of(path)
    return found


def documented() -> list[str]:
    text = (DOCS / "metrics.md").read_text(encoding="utf-8")
    return [pattern(key) for key in re.findall(r"^\| `(hier/[^`]+)` \|", text, flags=re.MULTILINE)]


def test_the_search_for_keys_finds_them():
    keys = emitted()
    assert len(keys) >= 25
    assert {"hier/rows/padding", "hier/credit/<>/mean", "hier/counts/<>", "hier/groups/without_rows"} <= set(keys)


def test_every_metric_key_has_a_row_and_every_row_a_key():
    rows, keys = documented(), emitted()
    assert len(rows) == len(set(rows))
    # One counter of several that a row names together has its row too.
    wanted = [re.compile(re.escape(row).replace("<>", "(<>|[^/<>]+)")) for row in rows]
    missing = {key: path for key, path in keys.items() if not any(row.fullmatch(key) for row in wanted)}
    assert not missing, f"docs/metrics.md has no row for {missing}"
    assert set(rows) <= set(keys), f"nothing emits {sorted(set(rows) - set(keys))}"


# ---- the rollout graph -----------------------------------------------------------------------------------------------

GRAPH_PAGE = (DOCS / "rollout_graph.md").read_text(encoding="utf-8")


def example():
    graph, _ = asyncio.run(
        roll_out_scripted(
            environment=lambda: Corridor(2),
            worker=lambda: React(ReactOptions()),
            sampler=Independent(NoOptions()),
            answer=lambda prompt, sampling: "right",
            n=1,
        )
    )
    return graph


def test_the_example_graph_is_what_the_code_makes():
    (told,) = re.findall(r"```json\n(.*?)```", GRAPH_PAGE, flags=re.DOTALL)
    assert json.loads(told) == example().to_dict()


def test_the_example_row_is_what_the_code_makes():
    (row,) = graph_rows(example(), lambda node: True)
    for name in ("prompt", "response", "mask", "turn_index"):
        told = re.search(rf"^\| {name} \| (.*) \|$", GRAPH_PAGE, flags=re.MULTILINE).group(1)
        assert [int(token) for token in told.replace("*", "").split()] == getattr(row, name)


def test_the_columns_are_those_of_the_table():
    rows = re.findall(r"^\| `(\w+)` \| (int|float|bool) \| (.*) \|$", GRAPH_PAGE, flags=re.MULTILINE)
    told = [f"{kind}; {text}" for _, kind, text in rows]
    assert [name for name, _, _ in rows] == [*TURN_COLUMNS, *EPISODE_COLUMNS]
    assert told == [*TURN_COLUMNS.values(), *EPISODE_COLUMNS.values()]


def test_paths_in_code_marks_exist():
    """`verl_hier/…`, `tests/…` and `plugins/…` that a page names are there."""
    names = ("architecture", "guards", "metrics", "rollout_graph", "schedules", "where")
    pages = [DOCS / f"{name}.md" for name in names]
    for page in [*pages, *sorted((DOCS / "methods").glob("*.md"))]:
        for path in re.findall(r"`((?:verl_hier|tests|plugins|recipes)/[\w/.]*)`", page.read_text(encoding="utf-8")):
            assert (ROOT / path).exists(), f"{name_of(page)} names {path}"


def test_pages_that_code_and_recipes_name_exist():
    files = [file for name in ("verl_hier", "plugins", "recipes", "scripts") for file in (ROOT / name).rglob("*.*")]
    named = [
        (file, page)
        for file in files
        if file.suffix in (".py", ".yaml", ".sh")
        for page in re.findall(r"\bdocs/[\w/.-]+\.md", file.read_text(encoding="utf-8"))
    ]
    assert len(named) > 50
    assert not [(name_of(file), page) for file, page in named if not (ROOT / page).is_file()]


def test_names_in_the_architecture_exist():
    text = (DOCS / "architecture.md").read_text(encoding="utf-8")
    names = re.findall(r"(?<![\w.])(?:rollout|compat|training|graph|environments)(?:\.\w+)+\b", text)
    assert len(names) >= 8
    for name in names:
        assert exists(["verl_hier", *name.split(".")]), name


def exists(path: list[str]) -> bool:
    """Whether a dotted path leads to a module or into one; nothing of compat is imported."""
    for split in range(len(path), 1, -1):
        file = ROOT.joinpath(*path[:split])
        if file.with_suffix(".py").is_file() or file.is_dir():
            rest = path[split:]
            if not rest or path[1] == "compat":
                source = file.with_suffix(".py") if rest else None
                return source is None or f" {rest[0]}" in source.read_text(encoding="utf-8")
            found = importlib.import_module(".".join(path[:split]))
            return all((found := getattr(found, name, None)) is not None for name in rest)
    return False
