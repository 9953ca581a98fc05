#!/usr/bin/env python3
"""How long `verl-hier view` takes to show a large run in Chromium, and how much memory its server needs.

The run is made up: groups of attempts that each branch once off the first one, with random tokens and credit, and in
its last step a group of 10,000 turns. That group is drawn, zoomed out as far as it goes, and dragged about.

    python scripts/bench/viewer.py --quick --write    # 600 groups of 1,000 turns, 200 MB; the figures of docs/viewer.md
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
FIGURES = ROOT / "docs" / "viewer.json"
STEPS = 20
TURNS = 20
"""Turns of an attempt."""
TOKENS = 30
LARGE = 10_000
TEMPLATES = 4
"""Groups that are made; the others are copies under other names."""
WANTED = {"first view, s": 1.0, "large group drawn, s": 1.0, "frames a second": 30.0, "server memory, MiB": 1024.0}
"""Bounds: from below for the frames, from above for the others."""
_DRAWN = """async (place) => {
  const begun = performance.now();
  location.hash = place;
  const frame = () => new Promise((done) => requestAnimationFrame(done));
  while (!document.querySelector(".tree canvas")) await frame();
  await frame(); await frame();
  return (performance.now() - begun) / 1000;
}"""
_SPOKEN = """async () => {
  const begun = performance.now();
  const pressed = new KeyboardEvent("keydown", { key: "ArrowRight", bubbles: true });
  document.querySelector(".tree canvas").dispatchEvent(pressed);
  const frame = () => new Promise((done) => requestAnimationFrame(done));
  while (!document.querySelector(".path .block") || !document.querySelector(".why .method")) await frame();
  return (performance.now() - begun) / 1000;
}"""
_PANNED = """async (seconds) => {
  const canvas = document.querySelector(".tree canvas"), box = canvas.getBoundingClientRect();
  const frame = () => new Promise((done) => requestAnimationFrame(done));
  const at = (x, y) => ({ bubbles: true, view: window, clientX: box.x + x, clientY: box.y + y });
  const mouse = (kind, x, y) => new MouseEvent(kind, at(x, y));
  for (let turn = 0; turn < 30; turn += 1) {
    canvas.dispatchEvent(new WheelEvent("wheel", { deltaY: 200, ...at(5, 5) }));
    await frame();
  }
  canvas.dispatchEvent(mouse("mousedown", 300, 100));
  const begun = performance.now();
  let frames = 0;
  for (; performance.now() - begun < seconds * 1000; frames += 1) {
    window.dispatchEvent(mouse("mousemove", 300 + 40 * Math.sin(frames / 9), 100 + 20 * Math.cos(frames / 9)));
    await frame();
  }
  const rate = frames / ((performance.now() - begun) / 1000);
  window.dispatchEvent(mouse("mouseup", 300, 100));
  return rate;
}"""


def one_graph(size: int, seed: int) -> Any:
    """A group of attempts of `TURNS` turns, each of which but the first leaves the first one somewhere."""
    from verl_hier.graph import EpisodeRecord, Message, Node, RolloutGraph

    dice = random.Random(seed)
    graph = RolloutGraph(task={"uid": str(seed), "index": seed, "data_source": "made up", "goal": f"task {seed}"})
    trunk: list[int] = []
    while len(graph.nodes) < size:
        number = len(graph.episodes)
        shared = dice.randrange(TURNS // 4) if number else 0
        leaf = trunk[shared - 1] if shared else -1
        for turn in range(shared, min(TURNS, shared + size - len(graph.nodes))):
            words = " ".join(dice.choices(("go", "left", "right", "open", "the", "door", "and", "look"), k=TOKENS))
            node = Node(
                id=len(graph.nodes), parent=leaf, context=leaf, episode=number, agent="agent", role="agent", level=0,
                turn=turn, segment=0, plan=-1, observation=dice.choices(range(50_000), k=TOKENS // 3),
                action=dice.choices(range(50_000), k=TOKENS), logprobs=[-dice.random() for _ in range(TOKENS)],
                prompt_tokens=(TOKENS + TOKENS // 3) * turn + TOKENS // 3, stop_reason="stop",
                text=words, anchor=words[:2],
                messages=[Message("user", f"you see {dice.choice(words.split())}")],
            )  # fmt: skip
            graph.nodes.append(node)
            leaf = node.id
            trunk += [leaf] * (number == 0)
        graph.nodes[leaf].done, won = True, dice.random() < 0.5
        graph.nodes[leaf].reward = float(won)
        tree = 0 if shared else number
        source = 0 if shared else -1
        graph.episodes.append(
            EpisodeRecord(number, source, shared, tree=tree, leaf=leaf, status="finished", ret=float(won), success=won)
        )
    return graph


def write_run(folder: Path, groups: int, size: int) -> str:
    """Write the run, and return the place of its large group."""
    from verl_hier.graph.columnar.encode import Whole, encode_whole
    from verl_hier.graph.columnar.writing import write_credit, write_tasks

    dice = random.Random(0)
    templates = [encode_whole([one_graph(size, seed)]) for seed in range(TEMPLATES)]
    large = encode_whole([one_graph(LARGE, TEMPLATES)])

    def named(number: int, whole: Whole) -> Whole:
        task = {"uid": f"{number:06d}", "data_source": "made up", "index": number, "goal": f"reach room {number}"}
        tasks = whole.tasks
        for column, value in (("uid", task["uid"]), ("task", json.dumps(task))):
            tasks = tasks.set_column(tasks.column_names.index(column), column, [[value]])
        return replace(whole, tasks=tasks)

    def tasks_of(step: int) -> Iterator[tuple[str, Whole]]:
        for number in range(groups // STEPS):
            yield f"{number:06d}", named(number, templates[(number + step) % TEMPLATES])
        if step == STEPS:
            yield "999999", named(999_999, large)

    for step in range(1, STEPS + 1):
        place = folder / "graphs" / f"step_{step:06d}"
        place.mkdir(parents=True)
        members = list(tasks_of(step))
        write_tasks(place, step, (whole for _, whole in members), "trainer")
        credit = {uid: {"credit": [dice.gauss(0, 1) for _ in range(len(whole.nodes))]} for uid, whole in members}
        write_credit(place, step, len(members), credit)
    record = {"name": "made up", "recipe": {"hier": {"estimator": {"name": "gigpo"}, "plugins": {"builtin": True}}}}
    (folder / "run.json").write_text(json.dumps(record))
    return f"#/group/{STEPS}/999999"


def measure(run: Path, place: str) -> dict[str, float]:
    """Figures by name, those of `WANTED` among them."""
    from tests.fixtures.browser import browser, tab

    command = [sys.executable, "-m", "verl_hier.cli.main", "view", str(run)]
    begun = time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as server, browser() as started:
        assert server.stdout is not None
        address = server.stdout.readline().split()[0]
        found = {"command ready, s": time.monotonic() - begun}
        try:
            begun = time.monotonic()
            with tab(started, address) as seen:
                seen.page.wait_for_selector(".curves figure")
                found["first view, s"] = time.monotonic() - begun
                seen.until("!document.querySelector('.unread')")
                found["whole run read, s"] = time.monotonic() - begun
                found["large group drawn, s"] = seen.page.evaluate(_DRAWN, place)
                found["frames a second"] = seen.page.evaluate(_PANNED, 3)
                found["words and reasons of a turn, s"] = seen.page.evaluate(_SPOKEN)
                assert not seen.complaints, seen.complaints
            status = Path(f"/proc/{server.pid}/status").read_text()
            found["server memory, MiB"] = int(status.partition("VmHWM:")[2].split()[0]) / 1024
        finally:
            server.terminate()
    return found


def table(measured: dict[str, Any]) -> Iterator[str]:
    """The figures in Markdown."""
    yield "| what | measured | wanted |"
    yield "|---|---|---|"
    for name, value in measured["figures"].items():
        bound = WANTED.get(name)
        wanted = "" if bound is None else f"{'at least' if name.startswith('frames') else 'under'} {bound:g}"
        yield f"| {name} | {value:.3g} | {wanted} |" if value < 1000 else f"| {name} | {value:.0f} | {wanted} |"
    yield ""
    yield (
        f"{measured['groups']:,} groups of {measured['size']:,} turns in {STEPS} steps, and one of {LARGE:,} turns; "
        f"{measured['machine']}, `python scripts/bench/viewer.py{' --quick' if measured['quick'] else ''}`, n = 1."
    )


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure the page of `verl-hier view`.")
    parser.add_argument("--quick", action="store_true", help="600 groups of 1,000 turns; else five times as many")
    parser.add_argument("--write", action="store_true", help=f"write {FIGURES.relative_to(ROOT)}")
    options = parser.parse_args()
    groups, size = (600 if options.quick else 3_000), 1_000
    with tempfile.TemporaryDirectory() as folder:
        place = write_run(Path(folder), groups, size)
        stored = sum(file.stat().st_size for file in Path(folder).rglob("*") if file.is_file())
        figures = {"store, MB": stored / 1e6, **measure(Path(folder), place)}
    machine = f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"
    measured = {"groups": groups, "size": size, "quick": options.quick, "machine": machine, "figures": figures}
    print("\n".join(table(measured)))
    if options.write:
        FIGURES.write_text(json.dumps(measured, indent=1) + "\n", encoding="utf-8")
    missed = [name for name, bound in WANTED.items() if (figures[name] < bound) == name.startswith("frames")]
    if missed:
        print(f"outside of the bounds: {', '.join(missed)}", file=sys.stderr)
    return bool(missed)


if __name__ == "__main__":
    raise SystemExit(main())
