"""Cost of ALFWorld: the engine as installed, the fast engine, and the fast engine behind the process pool.

Usage: python scripts/bench/environment.py [--games 12] [--steps 30] [--level tiny] [--processes 2] [--episodes 64]
Prints processor milliseconds for a first reset, a step and a fork, and wall-clock steps per second of the pool. Needs
the extra `alfworld`.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from verl_hier.environments.pool import EnvironmentPool
from verl_hier_plugins.environments.alfworld import SPEC
from verl_hier_plugins.environments.alfworld.engine import Game
from verl_hier_plugins.environments.alfworld.environment import AlfworldEnvironment
from verl_hier_plugins.environments.alfworld.options import AlfworldOptions
from verl_hier_plugins.environments.alfworld.pddl import game_data
from verl_hier_plugins.environments.alfworld.world import build_world

Times = dict[str, list[float]]


@contextmanager
def timed(times: Times, name: str) -> Iterator[None]:
    """Add the processor milliseconds of a block to `times[name]`; other programs on the machine do not count."""
    start = time.process_time()
    yield
    times.setdefault(name, []).append((time.process_time() - start) * 1e3)


def stock(games: list[dict[str, Any]], steps: int) -> Times:
    """TextWorld's environment under ALFWorld's wrapper; it has no fork but a replay."""
    import textworld
    from alfworld.agents.environment.alfred_tw_env import AlfredDemangler
    from textworld.envs.pddl import PddlEnv

    times: Times = {}
    for number, data in enumerate(games):
        rng, actions = random.Random(number), []
        env = AlfredDemangler(PddlEnv(textworld.EnvInfos(admissible_commands=True, won=True)), shuffle=False)
        with timed(times, "first reset"):
            env.load(data)
            state = env.reset()
        for _ in range(steps):
            actions.append(rng.choice(state["admissible_commands"]))
            with timed(times, "step"):
                state, _, _ = env.step(actions[-1])
        if number < 3:
            with timed(times, "fork after 8 steps"):
                env.reset()
                for action in actions[:8]:
                    env.step(action)
    return times


def fast(games: list[dict[str, Any]], steps: int) -> Times:
    """The graph of states: a step for the first time, the same step again, a fork."""
    times: Times = {}
    for number, data in enumerate(games):
        rng = random.Random(number)
        with timed(times, "first reset"):
            node = Game(data).start
        for _ in range(steps):
            command = rng.choice(node.admissible)
            with timed(times, "step"):
                walked = node.walk(command)
            with timed(times, "step met before"):
                node.walk(command)
            assert walked is not None
            node = walked[0]
    return times


def forks(tasks: list[dict[str, Any]], options: AlfworldOptions) -> Times:
    """A fork of the environment object."""
    times: Times = {}
    environment = AlfworldEnvironment(options)
    environment.reset(tasks[0], 0)
    for _ in range(100):
        with timed(times, "fork after 8 steps"):
            environment.fork()
    return times


async def pooled(
    tasks: list[dict[str, Any]], options: AlfworldOptions, processes: int, episodes: int, steps: int
) -> dict[str, float]:
    """Episodes of random actions, eight a task, all at once."""

    async def episode(number: int) -> None:
        rng = random.Random(number)
        handle, step = await pool.open(tasks[number // 8 % len(tasks)], 0)
        for _ in range(steps):
            step = await handle.step(rng.choice(step.admissible))
        await handle.close()

    pool = EnvironmentPool(SPEC.factory, options, processes=processes)
    start = time.perf_counter()
    await pool.start()
    started = time.perf_counter() - start
    rates = []
    for _ in range(2):
        start = time.perf_counter()
        await asyncio.gather(*(episode(i) for i in range(episodes)))
        rates.append(episodes * steps / (time.perf_counter() - start))
    await pool.close()
    return {"start of all processes, s": started, "steps/s, cold": rates[0], "steps/s, games known": rates[1]}


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--games", type=int, default=12)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--level", default="tiny")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--episodes", type=int, default=64)
    arguments = parser.parse_args()
    options = AlfworldOptions(goals=2, level=arguments.level, pool=arguments.games, max_steps=10_000)
    tasks = SPEC.tasks(options, "train")
    games = [game_data(build_world(task["world"])) for task in tasks]
    # The first game pays for imports and for parsing the grammar, on both sides.
    stock(games[:1], 1)
    fast(games[:1], 1)
    before, after = stock(games, arguments.steps), fast(games, arguments.steps) | forks(tasks, options)
    print(f"{arguments.games} games of level {arguments.level}, {arguments.steps} random steps each; mean CPU ms")
    print(f"{'':22}{'stock':>10}{'fast':>10}")
    for name in ("first reset", "step", "step met before", "fork after 8 steps"):
        cells = [f"{sum(t[name]) / len(t[name]):10.3f}" if name in t else f"{'-':>10}" for t in (before, after)]
        print(f"{name:22}{''.join(cells)}")
    figures = asyncio.run(pooled(tasks, options, arguments.processes, arguments.episodes, arguments.steps))
    for name, value in figures.items():
        print(f"pool of {arguments.processes}: {name:28}{value:10.2f}")


if __name__ == "__main__":
    main()
