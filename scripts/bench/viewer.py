#!/usr/bin/env python3
"""How long the page of `verl-hier view` takes on a large run: 1,000 groups of 1,000 turns, and one of 10,000.

Rollouts are made up: trees of 20 turns from root to leaf, whose episodes fork in their middle. Times are those that
somebody sees in Chromium without a window: from the start of the command to its address, from there to the overview,
from a link to the painted tree, from a key to the words of a path, and pictures a second while a mouse drags the tree.
Needs the extra `dev` and Chromium.

    python scripts/bench/viewer.py --quick
"""

from __future__ import annotations

import argparse
import json
import random
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.fixtures.browser import browser, tab  # noqa: E402
from verl_hier.graph import EpisodeRecord, Node, RolloutGraph, write_step  # noqa: E402

DEPTH = 20
"""Turns from root to leaf."""
TOGETHER = 50
"""Groups of a step."""
LIMITS = {
    "server_s": 2.0,
    "overview_s": 2.0,
    "tree_s": 1.0,
    "path_s": 1.0,
    "pictures_a_second": 30.0,
    "server_mib": 1024.0,
}
"""What each figure may be: at most, and the pictures at least."""
PAINTED = "document.querySelector('canvas')?.width > 300"
PICTURES = """() => { window.pictures = 0; const count = () => { window.pictures += 1; requestAnimationFrame(count); };
requestAnimationFrame(count); }"""


def one_tree(turns: int, seed: int) -> RolloutGraph:
    """A tree of about so many turns, whose episodes share the first half of another one's path."""
    dice = random.Random(seed)
    graph = RolloutGraph(task={"uid": f"task-{seed}", "index": seed, "instruction": f"find the exit of maze {seed}"})
    paths: list[list[int]] = []
    while len(graph.nodes) < turns:
        source = dice.randrange(len(paths)) if paths else -1
        path = list(paths[source][: DEPTH // 2]) if paths else []
        episode, shared = len(graph.episodes), path[-1] if path else -1
        while len(path) < DEPTH:
            path.append(_add_turn(graph, path, episode, dice))
        paths.append(path)
        graph.nodes[path[-1]].reward = success = float(dice.random() < 0.5)
        graph.nodes[path[-1]].done = True
        record = EpisodeRecord(
            episode, source=source, shared=shared, tree=0, leaf=path[-1], status="finished", ret=success
        )
        record.success = success
        graph.episodes.append(record)
    graph.credit = [dice.uniform(-1, 1) for _ in graph.nodes]
    return graph


def _add_turn(graph: RolloutGraph, path: list[int], episode: int, dice: random.Random) -> int:
    number, before = len(graph.nodes), path[-1] if path else -1
    role = "planner" if len(path) % 5 == 0 else "executor"
    graph.nodes.append(
        Node(
            id=number, parent=before, context=before, episode=episode, agent=role, role=role,
            level=int(role == "executor"), turn=len(path), segment=0, plan=-1, text=f"go to door {dice.randrange(9)}",
            observation=[1, 2, 3], action=[4, 5, 6, 7], logprobs=[-dice.random() for _ in range(4)],
            prompt_tokens=7 * len(path) + 3, anchor=str(len(path)), stop_reason="stop",
        )
    )  # fmt: skip
    return number


def make_run(folder: Path, groups: int, turns: int, largest: int) -> None:
    """Steps of 50 groups each, the last with one group more, the largest."""
    trees = [one_tree(turns, seed) for seed in range(min(TOGETHER, groups))]
    steps = max(1, groups // TOGETHER)
    for step in range(1, steps + 1):
        here = [*trees, one_tree(largest, 10_000)] if step == steps else trees
        for number, graph in enumerate(here):
            graph.step = step
            graph.task["uid"] = f"{step}-{number}"
        write_step(folder / "graphs", step, here)
    recipe = {"hier": {"estimator": {"name": "tree_grpo"}, "plugins": {"builtin": True}}}
    record = {"name": "made up", "overrides": [], "recipe": recipe}
    parts = {"parts": {"estimator": "tree_grpo"}, "seeds": {}, "versions": {}, "revision": None, "metrics": ""}
    (folder / "run.json").write_text(json.dumps(record | parts))


def measure(folder: Path, largest: tuple[int, str]) -> dict[str, float]:
    """The figures of `LIMITS` for a run; `largest` is the step and the uid of its largest group."""
    found: dict[str, float] = {}
    with browser() as started:
        begun = time.perf_counter()
        command = [sys.executable, "-m", "verl_hier.cli.main", "view", str(folder)]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert server.stdout is not None
            address = re.search(r"http://\S+", server.stdout.readline())
            assert address is not None, "the server said no address"
            found["server_s"], begun = time.perf_counter() - begun, time.perf_counter()
            step, uid = largest
            with tab(started, address[0]) as seen:
                seen.page.wait_for_selector("main h2")
                found["overview_s"] = time.perf_counter() - begun
                found |= _look_at(seen, f"{address[0]}#/group/{step}/{uid}")
            found["server_mib"] = psutil.Process(server.pid).memory_info().rss / 2**20
        finally:
            server.terminate()
            server.wait()
    return found


def _look_at(seen: Any, link: str) -> dict[str, float]:
    page, found = seen.page, {}
    begun = time.perf_counter()
    page.goto(link)
    page.wait_for_selector("canvas")
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    found["tree_s"] = time.perf_counter() - begun
    box = page.locator("canvas").bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(x, y)
    page.mouse.down()
    page.evaluate(PICTURES)
    begun = time.perf_counter()
    for number in range(120):
        page.mouse.move(x + 3 * (number % 40), y + 2 * (number % 30))
    found["pictures_a_second"] = page.evaluate("window.pictures") / (time.perf_counter() - begun)
    page.mouse.up()
    begun = time.perf_counter()
    page.keyboard.press("ArrowRight")
    page.wait_for_selector(".turn.chosen .said, .turn.chosen")
    seen.until("!document.querySelector('.path')?.textContent.includes('loading')")
    found["path_s"] = time.perf_counter() - begun
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="look once instead of three times, and take the medians")
    parser.add_argument("--groups", type=int, default=1000)
    parser.add_argument("--turns", type=int, default=1000, help="turns of a group")
    parser.add_argument("--largest", type=int, default=10_000, help="turns of the largest group")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        begun = time.perf_counter()
        make_run(folder, options.groups, options.turns, options.largest)
        print(f"{options.groups} groups of {options.turns} turns written in {time.perf_counter() - begun:.0f} s")
        step = max(1, options.groups // TOGETHER)
        largest = (step, f"{step}-{min(TOGETHER, options.groups)}")
        looks = [measure(folder, largest) for _ in range(1 if options.quick else 3)]
    missed = False
    for figure, limit in LIMITS.items():
        value = sorted(look[figure] for look in looks)[len(looks) // 2]
        least = figure == "pictures_a_second"
        held = value >= limit if least else value <= limit
        missed |= not held
        print(
            f"{figure:<20}{value:>10.2f}   {'at least' if least else 'at most'} {limit:g}{'' if held else '   MISSED'}"
        )
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
