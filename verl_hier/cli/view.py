"""`view`: a page that shows who said what, where it branched, and why it got its credit."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from verl_hier.cli.inspect import Enable, enabled
from verl_hier.cli.options import OptionalGraphs, new_file
from verl_hier.cli.output import line, table
from verl_hier.errors import HierError

if TYPE_CHECKING:
    from verl_hier.host.manager import PluginHost
    from verl_hier.ops.stored import Stored
    from verl_hier.viewer.book import Book


def view(
    source: OptionalGraphs = None,
    example: Annotated[bool, typer.Option("--example", help="Look at the run that comes with the package.")] = False,
    html: Annotated[Path | None, new_file("Write one page that opens from disk, and end.", ".html")] = None,
    text: Annotated[bool, typer.Option("--text", help="Print a summary, and end.")] = False,
    report: Annotated[
        bool, typer.Option("--report", help="Write report.html and report.md into the folder of the run, and end.")
    ] = False,
    estimator: Annotated[
        list[str] | None, typer.Option(help="Show the credit of this estimator too; can be repeated.")
    ] = None,
    against: Annotated[
        Path | None, typer.Option(help="Folder of another run: the first page says what is different.", exists=True)
    ] = None,
    enable: Enable = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on this machine; 0 is any free one.")] = 0,
) -> None:
    """Look at stored rollouts and the arithmetic of their credit."""
    from verl_hier.ops.report import write_report
    from verl_hier.ops.runs import Run
    from verl_hier.ops.sharing import said_of_last_step
    from verl_hier.ops.stored import Stored
    from verl_hier.viewer.html import EXAMPLE, LARGEST, page
    from verl_hier.viewer.server import serve

    if (source is None) != example:
        raise HierError("name a run, a store or a file of graphs to look at, or give --example and nothing else.")
    source = EXAMPLE if source is None else source
    stored = Stored.at(source)
    if report:
        if stored.run is None:
            raise HierError(
                f"{source} is not the folder of a run, so there is nothing to report on; leave --report out."
            )
        line(str(write_report(Run(stored.run))))
        return
    book = book_of(stored, estimator or [], enable, against)
    if stored.run is None and (text or html is not None):
        _require_groups(book)
    if text:
        _print(book)
        shared = said_of_last_step(stored)
        if shared:
            line(shared)
    elif html is not None:
        pages = list(book.pages(LARGEST))
        found = book.overview()
        html.parent.mkdir(parents=True, exist_ok=True)
        html.write_text(page(found["run"]["name"], pages), encoding="utf-8")
        held = sum(name.startswith("group/") for name, _ in pages)
        left_out = len(found["groups"]) - held
        for note in found["notes"]:
            line(note)
        line(f"{html}: {held} of {len(found['groups'])} groups")
        if left_out:
            line(f"{left_out} groups are in its tables and have no tree; `verl-hier view {source}` shows all of them.")
    else:
        serve(book, port, lambda address: line(f"{address}   (Ctrl-C ends it)"))


def book_of(stored: Stored, names: list[str], enable: list[str] | None = None, against: Path | None = None) -> Book:
    """The rollouts of a run with the estimator that it ran, and with others by name."""
    from verl_hier.host.manager import PluginHost
    from verl_hier.host.options import build_options
    from verl_hier.ops.runs import Run
    from verl_hier.viewer.book import Book, Metrics
    from verl_hier.viewer.why import Explainer, Method

    host = PluginHost.load(enabled(None, enable, stored.plugins()))
    settings = dict(stored.recipe().get("estimator", {}))
    ran = settings.pop("name", None)
    methods = []
    for name in dict.fromkeys([*([ran] if ran else []), *names]):
        spec: Any = host.spec("estimator", name)
        options = build_options(spec, settings if name == ran else {})
        methods.append(Method(spec, options, ran=name == ran))
    explainer = Explainer(methods, lambda turns, step: host.hook.hier_table_ready(table=turns, step=step))
    render = partial(_rendered, host) if host.implements("hier_render") else None
    metrics = None if stored.run is None else Metrics(Run(stored.run).metrics_file, Run(stored.run).metrics)
    changed = None if against is None else _changed(stored, against)
    return Book(stored.graphs, explainer, stored.record(), render, metrics, changed)


def _changed(stored: Stored, against: Path) -> dict[str, Any]:
    """What is different in another run: the lines of its recipe, and what it reached at equal tokens."""
    from verl_hier.ops.compare import compare
    from verl_hier.ops.compare_page import told
    from verl_hier.ops.runs import Run

    if stored.run is None:
        raise HierError("--against: what is looked at is not the folder of a run, so there is nothing to compare.")
    found = compare([Run(stored.run), Run.open(against)])
    lines = [[key, *words] for key, words in found.differences()]
    amount = found.amounts["tokens"]
    reached = [told(arm.at("tokens", amount), "tokens") for arm in found.arms]
    if len(found.arms) == 2:
        lines.insert(0, [f"{found.measure} at equal tokens", *reached])
    return {"name": str(against), "lines": lines}


def _rendered(host: PluginHost, task: dict[str, Any], path: list[dict[str, Any]]) -> str | None:
    found = host.hook.hier_render(task=task, path=path)
    return None if found is None else str(found)


def _require_groups(book: Book) -> None:
    """Refuse what holds nothing to look at; the folder of a run may hold nothing yet."""
    found = book.overview()
    if not found["groups"] and found["notes"]:
        raise HierError(found["notes"][0])


def _print(book: Book) -> None:
    found = book.overview()
    steps = found["steps"]
    line(f"{found['run']['name']}: {len(found['groups'])} groups in {len(steps)} steps")
    for note in found["notes"]:
        line(f"  {note}")
    for answer in found["answers"]:
        line(f"  {answer['asks']} {answer['says']}")
    for alarm in found["alarms"]:
        groups = [found["groups"][place] for place in alarm["places"][:1]]
        worst = [f"step {group['step']}, {group['title']!r:.80}" for group in groups]
        worst += [f"step {step}" for step in alarm["steps"][:1]]
        line(f"  {alarm['kind']}: {alarm['many']} {alarm['says']}; for instance {worst[0]}")
    names = ("success", "return", "groups that teach", "branches a group")
    rows = [(str(step["step"]), *(_number(step[name]) for name in names)) for step in steps]
    table(rows, head=("step", *names))


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"
