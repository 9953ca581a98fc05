"""How often each plan of a designer succeeds, and what it costs: of rollouts that `verl-hier eval` has written.

verl-hier eval runs/coldstart/math_mas_orchestra/model mas_orchestra_math -n 4 --temperature 1 --graphs plans.jsonl.gz
python scripts/bench/plans.py plans.jsonl.gz
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

from verl_hier.graph import read_graphs

ANSWER, REFUSED = "an answer of its own", "refused"


def main(file: Path) -> None:
    """Print a row for each plan, the most frequent first."""
    tried, won, turns = Counter[str](), Counter[str](), Counter[str]()
    for graph in read_graphs(file):
        for episode in graph.complete():
            path = [graph.nodes[node] for node in graph.path(episode.id)]
            alone = ANSWER if len(path) == 1 else path[0].text
            plan = alone if path[0].valid else REFUSED
            tried[plan] += 1
            won[plan] += bool(episode.success)
            turns[plan] += len(path)
    print("| plan | episodes | success | turns |\n|---|---|---|---|")
    for plan, number in tried.most_common():
        print(f"| {plan} | {number} | {won[plan] / number:.0%} | {turns[plan] / number:.1f} |")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
