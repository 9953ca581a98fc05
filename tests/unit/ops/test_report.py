"""The report of a run, as a page and as Markdown."""

from __future__ import annotations

import json
from html import unescape
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.fixtures import viewed_run
from tests.fixtures.written_runs import training, write_run
from verl_hier.cli.main import app
from verl_hier.errors import HierError
from verl_hier.graph import read_graphs
from verl_hier.ops.pages import Listing, Sentence, Table, html, markdown, visible
from verl_hier.ops.report import write_report
from verl_hier.ops.runs import Run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run with stored trees of TreeRL, and metrics of three steps."""
    home = tmp_path_factory.mktemp("reported")
    stored = viewed_run.write_run(home / "stored", "treerl")
    steps = training([0.25, 0.5, 0.75], 1000, {0: 0.2, 3: 0.6})
    rows = {"hier/rows/padding": 6.0, "hier/rows/trained": 10.0}
    made = write_run(home / "made", [step | rows if step["step"] == 2 else step for step in steps])
    for file in (made.recipe_file, made.metrics_file):
        file.rename(stored / file.name)
    return Run(stored)


def test_what_it_says(run: Run) -> None:
    page = write_report(run)
    text = unescape(page.read_text())
    assert page == run.report and "estimator treerl" in text
    assert "validation: 0.20 after step 0, 0.60 after step 3." in text
    assert "3.0k tokens, 24 episodes, 35 s" in text and "held-out success" in text
    assert text.count("<svg") == 1 and "<script" not in text
    assert "The group whose returns differ most" in text and "The worst group" in text
    last = [graph for graph in read_graphs(run.graphs) if graph.step == max(g.step for g in read_graphs(run.graphs))]
    assert any(f"{graph.credit[node.id]:+.3f}" in text for graph in last for node in graph.nodes if graph.credit)
    assert "├ agent" in text and "│ ├ agent" in text, "no branch is marked"
    assert "6 rows are padding" in text and "#/groups/step%3A2" in text
    assert "Shared tokens" in text and "tokens and 62.3% of the attention" in text
    links = [f"#/group/{graph.step}/{graph.task['uid']}" for graph in last]
    assert any(link in text for link in links)


def test_the_markdown_says_the_same(run: Run) -> None:
    write_report(run)
    text = run.report.with_suffix(".md").read_text()
    assert "![held-out success](report.svg)" in text and run.report.with_suffix(".svg").read_text().count("<svg") == 1
    assert "| spent | held-out success |" in text and "```text\n" in text


def test_the_command_writes_it_and_needs_a_run(run: Run, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["view", str(run.folder), "--report"])
    assert done.exit_code == 0 and done.output.strip() == str(run.report)
    alone = tmp_path / "alone"
    run.graphs.rename(alone)
    try:
        done = CliRunner().invoke(app, ["view", str(alone), "--report"])
        assert isinstance(done.exception, HierError) and "not the folder of a run" in str(done.exception)
    finally:
        alone.rename(run.graphs)


def test_a_run_that_stored_no_rollouts_has_its_curves(tmp_path: Path) -> None:
    made = write_run(tmp_path / "run", training([0.5] * 3))
    (made.folder / "run.json").write_text(json.dumps({"name": "mine", "recipe": {"hier": {}}}))
    text = write_report(made).read_text()
    assert "holds no rollouts" in text and "Shared tokens" not in text
    with pytest.raises(HierError, match="no metrics of a finished step yet"):
        write_report(write_run(tmp_path / "young", []))


@pytest.mark.parametrize("words", ["<script>x</script>", "a | b", "```", "\x1b[2J\u202eevil", "![x](y)<b>"])
def test_whatever_was_said_is_text(words: str) -> None:
    blocks = [Sentence(words), Table((words,), [(words,)]), Listing([words])]
    page, marked = html(words, blocks), markdown(words, blocks)
    assert "<script" not in page and "<b>" not in page
    assert "\x1b" not in page + marked and "\u202e" not in page + marked
    (listing,) = [part for part in marked.strip().split("\n\n") if part.endswith("`") and "text\n" in part]
    fence = listing.partition("text")[0]
    assert "![x]" not in marked.replace(listing, "")
    assert fence not in visible(words) and listing.count(fence) == 2
    rows = [line for line in marked.splitlines() if line.startswith("| ")]
    assert all(line.replace("\\|", "").count("|") == 2 for line in rows)
