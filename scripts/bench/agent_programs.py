#!/usr/bin/env python3
"""How many forks of a coding agent are the episode that they leave, up to where they leave it.

A program plays a task, with a tool or with a sub-agent, and is run again on its recorded answers before its last turn,
so many times. A fork counts where every request of the repeated run was the recorded one.

    python scripts/bench/agent_programs.py --forks 100
    python scripts/bench/agent_programs.py --programs codex claude_code --forks 5
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.fixtures.agent_programs import (  # noqa: E402
    SHELL,
    SPAWNS,
    SUBMITS,
    NotInstallable,
    Said,
    installed,
    lets_another_count,
    played,
)


def plays(name: str) -> Iterator[tuple[str, Said]]:
    """What the policy says to a program, by what is tried."""
    yield "a tool", [f"I look. \n{SHELL[name]}", SUBMITS.get(name, "six")]
    if name in SPAWNS:
        yield "a sub-agent", lets_another_count(name)


def main() -> int:
    parser = argparse.ArgumentParser(description="Count the forks of coding agents that are repeated exactly.")
    parser.add_argument("--programs", nargs="+", choices=[*SHELL], default=[*SHELL], help="all when omitted")
    parser.add_argument("--forks", type=int, default=100, help="of each program and each of its two tasks")
    parser.add_argument("--installed", type=Path, help="folder in which they are installed, and kept; omitted: none")
    options = parser.parse_args()
    lost = 0
    with tempfile.TemporaryDirectory() as folder:
        root = options.installed or Path(folder, "programs")
        for name in options.programs:
            try:
                os.environ["PATH"] += f":{installed(name, root)}"
            except NotInstallable as error:
                print(f"{name}: {error}")
                continue
            for what, said in plays(name):
                graph, _ = played(Path(folder), name, said, forks=options.forks)
                wrong = [episode.error for episode in graph.episodes[1:] if episode.status != "finished"]
                lost += len(wrong)
                print(f"{name}, {what}: {options.forks - len(wrong)} of {options.forks} forks", flush=True)
                print("".join(f"  {str(error)[-400:]}\n" for error in wrong[:3]), end="")
    return int(lost > 0)


if __name__ == "__main__":
    sys.exit(main())
