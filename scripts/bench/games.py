"""Cost of TextWorld and TextArena: the stock engine beside ours, and each TextArena game that the docs name.

Usage: python scripts/bench/games.py [--games 12] [--steps 30]
Prints mean processor milliseconds. Needs the extras `textworld` and `textarena`; compiles two games of TextWorld.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import mean
from typing import Any

Times = dict[str, list[float]]
WORLD = {"rooms": 3, "objects": 5, "quest": 3, "theme": "house", "goal_only": False}
PLAYED = {
    "FrozenLake-v0": {},
    "Sokoban-v0": {"settings": {"dim_room": [6, 6], "num_boxes": 1}},
    "TowerOfHanoi-v0": {},
    "TicTacToe-v0": {"opponent": "random"},
    "ConnectFour-v0": {"opponent": "random"},
    "KuhnPoker-v0": {"opponent": "random"},
    "2048-v0-ultra-easy": {},
}


@contextmanager
def timed(times: Times, name: str) -> Iterator[None]:
    """Add the processor milliseconds of a block to `times[name]`; other programs on the machine do not count."""
    start = time.process_time()
    yield
    times.setdefault(name, []).append((time.process_time() - start) * 1e3)


def walk(environment: Any, task: dict[str, Any], steps: int, times: Times, rng: random.Random, note: str = "") -> None:
    """A random walk, twice: the second one meets no state for the first time."""
    with timed(times, f"reset{note}"):
        step = environment.reset(task, 0)
    for _ in range(steps):
        if step.done or step.truncated:
            return
        with timed(times, f"step{note}"):
            step = environment.step(rng.choice(step.admissible))
        with timed(times, f"fork{note}"):
            environment.fork()


def textworld_games(games: int, steps: int) -> None:
    """Ours in both styles, and TextWorld's own environments."""
    import textworld

    from verl_hier_plugins.environments.textworld.environment import build
    from verl_hier_plugins.environments.textworld.making import compiled, generate
    from verl_hier_plugins.environments.textworld.options import TextworldOptions

    times: Times = {}
    generate({**WORLD, "seed": 0})
    with tempfile.TemporaryDirectory() as cache:
        for seed in range(games):
            with timed(times, "generate"):
                game = generate({**WORLD, "seed": seed})
            environment = build(TextworldOptions(observation="short", max_steps=steps))
            task = {"world": {**WORLD, "seed": seed}}
            for note in (", short, new", ", short, known"):
                walk(environment, task, steps, times, random.Random(seed), note)
            if seed < 2:
                wall = time.perf_counter()
                file = compiled(game, Path(cache))
                times.setdefault("compile (wall clock)", []).append((time.perf_counter() - wall) * 1e3)
                full = build(TextworldOptions(cache=cache, max_steps=steps))
                for note in (", full, new", ", full, known"):
                    walk(full, task, steps, times, random.Random(seed), note)
                game.save(str(file.with_suffix(".json")))
                for ending in (".json", ".z8"):
                    stock(textworld, file.with_suffix(ending), steps, times, random.Random(seed))
    show("TextWorld", times)


def stock(package: Any, file: Path, steps: int, times: Times, rng: random.Random) -> None:
    """TextWorld's own environment for a file."""
    with timed(times, f"reset, stock {file.suffix}"):
        environment = package.start(str(file), package.EnvInfos(admissible_commands=True, won=True, score=True))
        state = environment.reset()
    for _ in range(steps):
        with timed(times, f"step, stock {file.suffix}"):
            state, _, done = environment.step(rng.choice(state["admissible_commands"]))
        with timed(times, f"fork, stock {file.suffix}"):
            environment.copy()
        if done:
            return


def textarena_games(games: int, steps: int) -> None:
    """Each game that is named above."""
    from verl_hier_plugins.environments.textarena.environment import TextarenaEnvironment
    from verl_hier_plugins.environments.textarena.options import TextarenaOptions

    for game, options in PLAYED.items():
        times: Times = {}
        environment, rng = TextarenaEnvironment(TextarenaOptions(game=game, **options)), random.Random(0)
        environment.reset({"seed": 0, "seat": 0}, 0)
        for seed in range(4 * games):
            walk(environment, {"seed": seed, "seat": seed}, steps, times, rng)
        show(f"TextArena {game}", times)


def show(title: str, times: Times) -> None:
    """One line a measurement."""
    print(f"\n{title}")
    for name, found in times.items():
        print(f"  {name:24} {mean(found):9.3f} ms   n = {len(found)}")


def main() -> None:
    """Parse and measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--games", type=int, default=12)
    parser.add_argument("--steps", type=int, default=30)
    arguments = parser.parse_args()
    textworld_games(arguments.games, arguments.steps)
    textarena_games(arguments.games, arguments.steps)


if __name__ == "__main__":
    main()
