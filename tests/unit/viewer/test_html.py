"""The page as a file: what it may do, what is embedded in it, and that the bundle is what the sources make."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser

import pytest
from typer.testing import CliRunner

from tests.fixtures.trainer import ROOT
from tests.fixtures.viewed_run import log_step
from verl_hier.cli.main import app
from verl_hier.graph import read_graphs
from verl_hier.graph.rows import graph_rows
from verl_hier.viewer.html import BUNDLE, page


class Elements(HTMLParser):
    """The scripts and styles of a page, as a browser separates them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[list] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found.append([tag, dict(attrs), ""])

    def handle_data(self, data):
        if self.found:
            self.found[-1][2] += data

    def handle_endtag(self, tag):
        self.found.append(["", {}, ""])

    def of(self, tag):
        return [(attributes, text) for name, attributes, text in self.found if name == tag]


def test_the_policy_allows_the_page_s_own_script_and_style_alone():
    elements = Elements(page("a run", [("overview", "{}")]))
    (policy,) = (each["content"] for each, _ in elements.of("meta") if "http-equiv" in each)
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == rules["connect-src"] == rules["base-uri"] == rules["form-action"] == "'none'"
    running = [text for attributes, text in elements.of("script") if attributes.get("type") != "application/json"]
    (style,) = (text for _, text in elements.of("style"))
    for name, content in (("script-src", running[0]), ("style-src", style)):
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert rules[name] == f"'sha256-{digest}'"
    assert len(running) == 1 and not re.search(r"(src|href)=[\"']?(https?:)?//", page("a run"))


def test_nothing_in_the_data_ends_its_element():
    evil = "</script><script>alert(1)</script><!--\u2028\u2029&lt;"
    text = page(evil, [('group/1/"><script>x', json.dumps({"a": evil}, ensure_ascii=False))])
    elements = Elements(text)
    scripts = elements.of("script")
    assert len(scripts) == 2 and json.loads(scripts[0][1]) == {"a": evil}
    assert scripts[0][0]["data-name"] == 'group/1/"><script>x'
    assert "\u2028" not in scripts[0][1] and elements.of("title")[0][1].startswith("</script>")


def test_a_file_holds_the_groups_that_fit_and_says_what_it_leaves_out(runs, tmp_path, monkeypatch):
    file = tmp_path / "deep" / "out.html"
    done = CliRunner().invoke(app, ["view", str(runs["himac"]), "--html", str(file)])
    assert done.exit_code == 0 and "6 of 6 groups" in done.output and file.stat().st_size < 5_000_000
    monkeypatch.setattr("verl_hier.viewer.html.LARGEST", 80_000)
    done = CliRunner().invoke(app, ["view", str(runs["himac"]), "--html", str(file)])
    assert done.exit_code == 0 and re.search(r"\n[1-5] groups are in its tables and have no tree", done.output)
    names = {each["data-name"] for each, _ in Elements(file.read_text()).of("script") if "data-name" in each}
    groups = [name.partition("/")[2] for name in names if name.startswith("group/")]
    assert 1 <= len(groups) <= 5
    assert names == {"overview", *(f"{view}/{group}" for group in groups for view in ("group", "words", "why"))}


def test_a_summary_is_printed_where_there_is_no_browser(runs):
    done = CliRunner().invoke(app, ["view", str(runs["himac"]), "--text"])
    assert done.exit_code == 0
    assert "himac_corridor: 6 groups in 2 steps" in done.output and "so they teach nothing" in done.output
    last = [graph for graph in read_graphs(runs["himac"] / "graphs") if graph.step == 2]
    rows = [[row.prompt + row.response for row in graph_rows(graph, lambda node: True)] for graph in last]
    tokens = sum(len(row) for group in rows for row in group)
    unique = sum(len({tuple(row[: k + 1]) for row in group for k in range(len(row))}) for group in rows)
    assert f"The rows of step 2 have {tokens} tokens." in done.output
    assert f"it would compute {unique / tokens:.1%} of the tokens" in done.output


def test_a_summary_names_the_steps_of_alarms_that_have_no_group(runs, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(runs["himac"], run)
    log_step(run, 2, {"hier/rows/padding": 7.0, "hier/rows/trained": 1.0})
    done = CliRunner().invoke(app, ["view", str(run), "--text"])
    assert "7 rows are padding, more than 25% of the rows of their steps; for instance step 2\n" in done.output


def test_the_bundle_has_the_licences_of_what_is_in_it():
    packages = json.loads((ROOT / "page" / "package.json").read_text())["dependencies"]
    text = (BUNDLE / "LICENSES.txt").read_text()
    for name, version in packages.items():
        assert f"{name} {version} (" in text
    assert "Permission" in text and len(text) > 5_000


def test_the_sources_never_make_html_of_data():
    for file in (ROOT / "page" / "src").iterdir():
        text = file.read_text()
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", text), (
            file
        )


def test_the_bundle_is_what_the_sources_make():
    if shutil.which("npm") is None or not (ROOT / "page" / "node_modules").is_dir():
        pytest.skip("needs Node and the packages of page/: run `npm ci` there")
    done = subprocess.run([sys.executable, "scripts/page.py", "--check"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
