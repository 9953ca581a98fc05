"""What every environment of the plugins needs and how fast it is: docs/worlds.json, shown in docs/environments.md.

Usage: python scripts/bench/all_worlds.py [--only NAME …] [--seconds 5]
Plays each environment here, in this process, with random possible actions, or those of its expert where it lists none.
Measured: steps, resets and forks a second of processor time, child processes included; whether equal seeds and actions
give equal answers; whether `fork` makes a copy or a replay. An environment is called offline when it was played while
this process could not connect to another machine. Where a package is missing the row stays as it was. Needs the extras,
and Java. Environments without a world of their own are played with the small ones of scripts/bench/borrowed_worlds.py;
`verifiers` in the interpreter that the variable VERL_HIER_VERIFIERS names.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import psutil
from borrowed_worlds import BORROWED, with_options

from verl_hier.environments.base import Environment, StepResult
from verl_hier.environments.expert import OffersExpert
from verl_hier.errors import HierError
from verl_hier.host.manager import PluginHost
from verl_hier.host.specs import EnvironmentSpec

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "docs" / "worlds.json"
PACKAGES = {
    **{"alfworld": ("alfworld", "textworld"), "minigrid": ("minigrid", "gymnasium"), "search": ("bm25s",)},
    **{"textarena": ("textarena",), "textworld": ("textworld",), "python_tool": ("reasoning-gym",)},
    **{"textworld_express": ("textworld-express", "py4j"), "scienceworld": ("scienceworld", "py4j"), "mcp": ("mcp",)},
    **{"openenv": ("aiohttp",), "retrieval": ("aiohttp", "bm25s"), "gateway": ("aiohttp",), "shop": ("bm25s",)},
    **{"verifiers": ("verifiers",), "verl_tools": ("verl",)},
}
"""The packages whose licences concern a user; the others are parts of verl-hier."""
OPTIONS: dict[str, dict[str, Any]] = {"textworld": {"observation": "short", "pool": 16}}
"""What is played where the defaults would measure a compiler."""
LEFT_OUT = ("prompt", "gym_text")
"""They have no world of their own."""
FORKS = {"native": "replay", "replay": "replay", "recorded": "recorded answers"}
"""What makes a copy where the environment has no `fork` that does."""
JAVA = ("textworld_express", "scienceworld")
LONGEST = 40
CHILDREN: list[psutil.Process] = []
"""Child processes that stay; looked for once an environment, because that takes long."""
LOCAL = ("127.0.0.1", "::1", "localhost")


@contextmanager
def offline() -> Iterator[None]:
    """No connection to another machine; those of this machine stay, such as Java's."""
    connect = socket.socket.connect

    def refuse(self: socket.socket, address: Any) -> None:
        if isinstance(address, tuple) and address[0] not in LOCAL:
            raise OSError(f"a connection to {address} while offline")
        connect(self, address)

    socket.socket.connect = refuse  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        socket.socket.connect = connect  # type: ignore[method-assign]


def processor_s() -> float:
    """Processor seconds of this process and of its children, such as Java; those of children in hundredths."""
    ended = os.times()
    live = sum(times.user + times.system for times in (child.cpu_times() for child in CHILDREN if child.is_running()))
    return time.process_time() + ended.children_user + ended.children_system + live


class Clock:
    """Calls and the processor seconds that they took."""

    def __init__(self) -> None:
        self.calls, self.seconds = 0, 0.0

    @contextmanager
    def call(self) -> Iterator[None]:
        """Time one call."""
        start = processor_s()
        yield
        self.seconds += max(0.0, processor_s() - start)
        self.calls += 1

    @property
    def rate(self) -> float | None:
        """Calls a second, to two digits; None without a call."""
        return float(f"{self.calls / self.seconds:.2g}") if self.calls and self.seconds else None


def actions(world: Environment, step: StepResult, expert: Any, rng: random.Random, given: Sequence[str]) -> str | None:
    """A random possible action; where none are listed the expert's, or one of those that are given."""
    if given:
        return rng.choice(given)
    if step.admissible:
        return rng.choice(step.admissible)
    for subgoal in range(len(expert.subgoals) if expert else 0):
        if (advice := expert.advise(subgoal)) is not None:
            return str(advice)
    return None


def expert_of(world: Environment) -> Any:
    """The expert for the episode; None without one."""
    try:
        return world.expert(random.Random(0)) if isinstance(world, OffersExpert) else None
    except HierError:
        return None


def episode(
    world: Environment, task: Any, clocks: tuple[Clock, Clock, Clock], seed: int, given: Sequence[str] = ()
) -> list[StepResult]:
    """One episode, timed; a fork in its middle, if the environment makes one."""
    resets, steps, forks = clocks
    with resets.call():
        step = world.reset(task, 0)
    said, expert, rng = [step], None if step.admissible else expert_of(world), random.Random(seed)
    while not (step.done or step.truncated) and len(said) < LONGEST:
        if (action := actions(world, step, expert, rng, given)) is None:
            break
        with steps.call():
            step = world.step(action)
        said.append(step)
        if len(said) == 2:
            forked = Clock()
            with forked.call():
                twin = world.fork()
            if twin is not None:
                forks.calls, forks.seconds = forks.calls + 1, forks.seconds + forked.seconds
                twin.close()
    return said


def measured(spec: EnvironmentSpec, seconds: float) -> dict[str, Any]:
    """One row of the table."""
    clocks = (Clock(), Clock(), Clock())
    borrowed = BORROWED.get(spec.name)
    options = None if borrowed else spec.options(**OPTIONS.get(spec.name, {}))
    with offline(), borrowed(spec) if borrowed else nullcontext(with_options(spec, options)) as played:
        tasks, given = played.tasks, played.actions
        world, other = played.make(), played.make()
        twice = [
            episode(one, task, (Clock(), Clock(), Clock()), seed, given)
            for one in (world, other)
            for seed, task in enumerate(tasks[:3])
        ]
        CHILDREN[:] = psutil.Process().children()
        start, number = time.perf_counter(), 0
        while time.perf_counter() - start < seconds:
            episode(world, tasks[number % len(tasks)], clocks, number, given)
            number += 1
        world.close()
        other.close()
    found = {name: importlib.metadata.metadata(name) for name in PACKAGES.get(spec.name, ())}
    resets, steps, forks = clocks
    return {
        "extra": spec.extra,
        "offline": True,
        "seeded": said(twice[: len(twice) // 2]) == said(twice[len(twice) // 2 :]),
        "fork": "copy" if forks.calls else "no" if spec.fork == "never" else FORKS[spec.fork],
        "steps": steps.rate,
        "resets": resets.rate,
        "forks": forks.rate,
        "licences": {name: licence(about) for name, about in found.items()},
    }


def said(episodes: list[list[StepResult]]) -> list[list[tuple[Any, ...]]]:
    """What a replay compares of the answers."""
    return [
        [(step.text, step.reward, step.done, step.truncated, step.valid, step.anchor) for step in one]
        for one in episodes
    ]


def elsewhere(python: str, seconds: float) -> None:
    """Measure `verifiers` in an interpreter that has it, which writes the row."""
    path = os.pathsep.join(str(ROOT / folder) for folder in (".", "plugins"))
    command = [python, __file__, "--only", "verifiers", "--seconds", str(seconds)]
    subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, check=True)


def licence(about: Any) -> str:
    """What a package says of itself, in a few words."""
    files = importlib.metadata.files(about["Name"]) or ()
    texts = (file.read_text().split("\n") for file in files if file.name.upper().startswith("LICENSE"))
    stated = [line.strip() for text in texts for line in text[:3] if "license" in line.lower()]
    classifiers = [text.rpartition(" :: ")[2] for text in about.get_all("Classifier") or () if "License ::" in text]
    said = about.get("License-Expression") or next(iter((*classifiers, *stated)), about.get("License") or "not stated")
    return str(said).strip().splitlines()[0][:40]


def machine() -> str:
    """The processor and how busy the machine was."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "a processor")
    return f"{name}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"


def table_of(measured: dict[str, Any]) -> Iterator[Sequence[str]]:
    """The rows of the table in docs/environments.md, with its head."""
    yield ("world", "install", "offline", "seeded", "fork", "steps a second", "resets a second", "licence")
    for name, one in measured["worlds"].items():
        licences = ", ".join(f"{package} {of}" for package, of in one["licences"].items()) or "verl-hier's own"
        java = " and Java" if name in JAVA else ""
        other = "verifiers, in an interpreter of its own" if name == "verifiers" else "nothing"
        install = f"`verl-hier[{one['extra']}]`{java}" if one["extra"] else other
        forks = f"{one['fork']}, {one['forks']:,.0f} a second" if one["forks"] else one["fork"]
        said = ["yes" if one[what] else "no" for what in ("offline", "seeded")]
        rates = [f"{one[what]:,.0f}" if one[what] >= 10 else f"{one[what]:.1f}" for what in ("steps", "resets")]
        yield (f"[`{name}`](environments/{name}.md)", install, *said, forks, *rates, licences)


def main() -> None:
    """Measure, and write what was measured."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", nargs="*", default=[], help="environments to measure; the others keep their rows")
    parser.add_argument("--seconds", type=float, default=5.0, help="seconds for which each is played")
    arguments = parser.parse_args()
    before = json.loads(FILE.read_text("utf-8"))["worlds"] if FILE.is_file() else {}
    rows = dict(before)
    for name, spec in sorted(PluginHost.load({"builtin": True}).specs("environment").items()):
        if name in LEFT_OUT or (arguments.only and name not in arguments.only):
            continue
        assert isinstance(spec, EnvironmentSpec)
        try:
            rows[name] = measured(spec, arguments.seconds)
        except HierError as error:
            if name == "verifiers" and (python := os.environ.get("VERL_HIER_VERIFIERS")) and python != sys.executable:
                elsewhere(python, arguments.seconds)
                rows = json.loads(FILE.read_text("utf-8"))["worlds"]
            else:
                print(f"{name}: not measured: {error}")
            continue
        print(name, json.dumps(rows[name]))
        text = json.dumps({"machine": machine(), "worlds": dict(sorted(rows.items()))}, indent=1)
        FILE.write_text(f"{text}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
