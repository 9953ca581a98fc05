"""What the README shows at first sight, made of files: results, sums over the methods, and other projects."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from docs_markdown import table
from docs_papers import CLAIMS, loop

from verl_hier.ops.bench import tables
from verl_hier.ops.bench.cells import Cells, at_budget
from verl_hier.ops.bench.panel import Panel

DOCS = Path(__file__).resolve().parents[1] / "docs"
SIGNS = {"yes": "●", "partly": "◐", "no": "○", "-": "–"}


def results() -> Iterator[str]:
    """The comparisons of docs/front.yaml: points gained, and the difference to GRPO's by seed, with its interval."""
    panel = Panel.find("learning")
    curves = tables.grouped(panel, Cells(DOCS / "learning" / "cells.jsonl").all)
    rows = []
    for name, method in yaml.safe_load((DOCS / "front.yaml").read_text("utf-8")):
        about = panel.tasks[name]
        ours, flat = (tables.gains(curves[name, each], about.tokens) for each in (method, about.baseline))
        reached = statistics.mean(100 * at_budget(curve, about.tokens) for curve in curves[name, method].values())
        before = reached - statistics.mean(ours.values())
        cells = (
            f"{before:.0f} → {reached:.0f} %",
            *(f"{statistics.mean(each.values()):+.0f}" for each in (ours, flat)),
        )
        more = tables.beyond(curves, name, method, about.baseline, about.tokens)
        rows.append((about.title, f"{about.tokens:,}", method, *cells, more))
    seeds = sorted({len(curves[name, method]) for name, method in curves})
    head = ("tasks", "tokens", "method", "success", "points gained", "GRPO gains", "difference (95 %)")
    yield from table(head, *rows)
    yield ""
    yield (
        f"Held-out success of a model of 0.2 million parameters, {' to '.join(map(str, seeds))} seeds, each method "
        "from the same cold start on the same tasks for the same tokens; the difference is paired by seed, and an "
        "interval that holds 0 decides nothing. [All comparisons, curves and costs](docs/learning/README.md); none "
        "of them is of a large model."
    )


def sums() -> Iterator[str]:
    """How many of the methods reproduce what, in one sentence."""
    claims = yaml.safe_load(CLAIMS.read_text("utf-8")).values()
    recorded = sum(claim["formula"]["says"] == "recorded cases" for claim in claims)
    whole = sum(loop(claim).startswith("whole") for claim in claims)
    measured = sum(claim["proof"]["says"] != "not measured yet" for claim in claims)
    gpu = _json("gpu.json") if (DOCS / "gpu.json").is_file() else {}
    on_gpu = f"{len(gpu['recipes'])} recipes run on {gpu['device']}" if gpu.get("recipes") else "no run yet"
    yield (
        f"**{len(claims)} methods: {recorded} reproduce recorded outputs of their authors' code, {whole} whole by a "
        f"machine's comparison of every setting, {measured} measured against GRPO over three seeds; GPU: {on_gpu}.** "
        "[The table of all of them](docs/papers.md#every-method) says of each what is missing."
    )


def rivals() -> Iterator[str]:
    """Abilities by project, from docs/field.yaml."""
    field = yaml.safe_load((DOCS / "field.yaml").read_text("utf-8"))
    projects = field["projects"]
    names = [f"[{name}]({about.get('url')})" for name, about in projects.items()]
    names[0] = f"**{next(iter(projects))}**"
    rows = [(ability, *(SIGNS[_word(word)] for word in words)) for ability, words in field["abilities"].items()]
    yield from table(("", *names), *rows)
    commits = [f"{name} {about['commit']}" for name, about in list(projects.items())[1:]]
    yield ""
    told = f"Code and documentation as read from {field['read']}, nothing run"
    yield f"● yes, ◐ partly, ○ no. {told}: {'; '.join(commits)}."


def _word(word: object) -> str:
    """YAML reads yes and no as truth values."""
    return {True: "yes", False: "no"}.get(word, str(word)) if isinstance(word, bool) else str(word)


def quickstart() -> Iterator[str]:
    """What the last measured quickstart gained, of docs/quickstart.json."""
    found = _json("quickstart.json")
    before, after, minutes = found["success_before"], found["success_after"], found["wall_s"] / 60
    yield (
        "`scripts/quickstart` builds a model of 200,000 parameters, shows it 480 demonstrations, and trains it with "
        f"HiMAC on two-goal households of the real ALFWorld engine. Measured on {found['date']} with seed "
        f"{found['seed']}: held-out success {before:.1%} → {after:.1%} in {minutes:.0f} minutes on {found['machine']}. "
        "[Every figure with its command](docs/quickstart.md)."
    )


def _json(name: str) -> Any:
    return json.loads((DOCS / name).read_text("utf-8"))


BLOCKS = {"results": results, "sums": sums, "rivals": rivals, "quickstart": quickstart}
