"""Choose what `verl-hier view --example` shows of a run, and write the example page, docs/example.html.

python scripts/example.py runs/quickstart/training    # a run whose rollouts are stored
python scripts/example.py                             # the page alone, of the example that is there
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from verl_hier.cli.view import book_of  # noqa: E402
from verl_hier.graph import read_graphs, write_step  # noqa: E402
from verl_hier.ops.runs import Run  # noqa: E402
from verl_hier.ops.stored import Stored  # noqa: E402
from verl_hier.viewer.html import EXAMPLE, page  # noqa: E402

GROUPS = 2
"""Of each step: those whose returns differ most."""
LARGEST = 900_000
"""Characters of the rollouts in the page."""
KEPT = ("recipe", "parts", "versions", "seeds", "overrides", "revision", "name")


def choose(run: Run) -> None:
    """Write the example anew: some groups of each step, the metrics, and what ran, without paths."""
    shutil.rmtree(EXAMPLE, ignore_errors=True)
    steps: dict[int, list[Any]] = {}
    for graph in read_graphs(run.graphs):
        steps.setdefault(graph.step, []).append(graph)
    for step, graphs in sorted(steps.items()):
        write_step(EXAMPLE / "graphs", step, sorted(graphs, key=_spread)[-GROUPS:])
    rows = [{"step": record.pop("step"), "data": record} for record in run.metrics()]
    (EXAMPLE / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows), "utf-8")
    record = {name: value for name, value in json.loads((run.folder / "run.json").read_text()).items() if name in KEPT}
    hier = record["recipe"]["hier"]
    record["recipe"] = {"hier": {name: hier[name] for name in ("estimator", "plugins", "guards")}}
    record["overrides"] = [text for text in record["overrides"] if "path" not in text]
    (EXAMPLE / "run.json").write_text(json.dumps(record, indent=1), "utf-8")


def _spread(graph: Any) -> float:
    returns = [episode.ret for episode in graph.complete() if episode.trained]
    return max(returns) - min(returns) if returns else 0.0


def main() -> None:
    if len(sys.argv) > 1:
        choose(Run(Path(sys.argv[1])))
    book = book_of(Stored.at(EXAMPLE), ["gigpo"])
    text = page(book.overview()["run"]["name"], book.pages(LARGEST))
    (ROOT / "docs" / "example.html").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
