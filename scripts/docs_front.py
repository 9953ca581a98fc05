"""What the README shows at first sight, made of files: results, sums over the methods, and other projects."""

from __future__ import annotations

import importlib
import json
import math
import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml
from docs_markdown import table
from docs_papers import CLAIMS, loop

DOCS = Path(__file__).resolve().parents[1] / "docs"
STUDENT = {2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}
"""The 97.5th percentile of Student's t, by degrees of freedom."""
SIGNS = {"yes": "●", "partly": "◐", "no": "○", "-": "–"}


def results() -> Iterator[str]:
    """The comparisons of docs/front.yaml: points gained, and the difference to GRPO's by seed, with its interval."""
    measured = _json("learning/learning.json")
    report = _learning_report()
    curves = {(name, method): each for name, method, each in report.grouped(measured)}
    rows = []
    for name, method in yaml.safe_load((DOCS / "front.yaml").read_text("utf-8")):
        about = report.COMPARISONS[name]
        gains = [_gains(report, curves[name, each], about.tokens) for each in (method, "grpo")]
        both = [ours - flat for ours, flat in zip(*gains, strict=True)]
        reached = statistics.mean(100 * report.at_budget(curve, about.tokens) for curve in curves[name, method])
        cells = (f"{reached - statistics.mean(gains[0]):.0f} → {reached:.0f} %", *(f"{_mean(each)}" for each in gains))
        rows.append((about.task, f"{about.tokens:,}", method, *cells, difference(both)))
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


def _gains(report: Any, curves: Sequence[Any], tokens: float) -> list[float]:
    return [100 * (report.at_budget(curve, tokens) - curve[0]["success"]) for curve in curves]


def _mean(values: Sequence[float]) -> str:
    return f"{statistics.mean(values):+.0f}"


def difference(values: Sequence[float]) -> str:
    """The mean of differences and its interval of 95 %, by Student's t."""
    half = STUDENT[len(values) - 1] * statistics.stdev(values) / math.sqrt(len(values))
    mean = statistics.mean(values)
    return f"{mean:+.0f} ({mean - half:+.0f} to {mean + half:+.0f})"


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


def _learning_report() -> Any:
    sys.path.insert(0, str(Path(__file__).parent / "bench"))
    return importlib.import_module("learning_report")


BLOCKS = {"results": results, "sums": sums, "rivals": rivals, "quickstart": quickstart}
