"""SECURITY.md names a test for each promise, and a section for each stranger."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "SECURITY.md").read_text()
TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
SECTIONS = ("Servers", "Agent programs", "The live page")


def _section(name):
    return TEXT.partition(f"\n## {name}\n")[2].partition("\n## ")[0]


def _cells(row):
    return [cell.strip() for cell in row.strip("|").split(" | ")]


def test_every_named_test_is_there():
    missing = []
    for file, name in TEST.findall(TEXT):
        path = ROOT / file
        tree = ast.parse(path.read_text()) if path.is_file() else ast.Module([], [])
        if name not in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}:
            missing.append(f"{file}::{name}")
    assert not missing and len(TEST.findall(TEXT)) > 30


def test_every_promise_names_its_test():
    for section in SECTIONS:
        rows = [_cells(row) for row in _section(section).splitlines() if row.startswith("| ")][1:]
        assert len(rows) >= 5
        for promise, *proofs in rows:
            assert promise.endswith(".") and len(proofs) == 1 and TEST.search(proofs[0]), promise


def test_every_stranger_leads_to_a_section():
    rows = [_cells(row) for row in _section("Who is not trusted").splitlines() if row.startswith("| ")][1:]
    assert len(rows) == 5
    headings = {re.sub(r"[^\w -]", "", line.lstrip("# ").lower()).replace(" ", "-") for line in TEXT.splitlines()}
    for *_, against in rows:
        anchors = re.findall(r"\(#([\w-]+)\)", against)
        assert anchors and {*anchors} <= headings, against
