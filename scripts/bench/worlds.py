"""A world that answers after a second, for many episodes at once: asynchronous in one process, synchronous in several.

Usage: python scripts/bench/worlds.py [--quick] [--episodes 256] [--rounds 4] [--processes 2 8 32]
Prints calls a second, how long a call takes, and the processor time of the rollout worker for each; then what one call
that hangs does to the other episodes. `--quick` leaves out the synchronous pools and fails when a promise of the
documentation is not kept. The server runs here, in a process of its own. Needs aiohttp.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import json
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

from verl_hier.environments.asynchronous import AsyncEnvironment, AsyncOptions
from verl_hier.environments.base import Environment, StepResult
from verl_hier.environments.pool import EnvironmentFailure, EnvironmentPool, Handle

ANSWER_S = 1.0
HANG = "hang"
LIMIT_S = 5.0
MOST_EPISODES = 64
"""Episodes of a synchronous pool, which would take minutes with more."""
PROMISES = {"calls a second": 200.0, "worker ms a call": 0.1, "delay by a hang, s": 0.2}


class Slow(AsyncEnvironment):
    """Asks the server at every step."""

    def __init__(self, client: Any) -> None:
        self._client = client

    async def reset(self, task: Mapping[str, Any], seed: int) -> StepResult:
        """See `AsyncEnvironment.reset`."""
        self._episode, self._calls = task["episode"], 0
        return StepResult("ready")

    async def step(self, action: str) -> StepResult:
        """See `AsyncEnvironment.step`."""
        self._calls += 1
        name = f"{self._episode} {self._calls}"
        async with self._client.post("/", json={"name": name, "action": action}) as answer:
            return StepResult(await answer.text())


@asynccontextmanager
async def service(url: str) -> AsyncIterator[Callable[[], Slow]]:
    """One HTTP client for all episodes, with as many connections as they need."""
    import aiohttp

    connections, no_limit = aiohttp.TCPConnector(limit=0), aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(url, connector=connections, timeout=no_limit) as client:
        yield lambda: Slow(client)


class SlowSync(Environment):
    """The same world, synchronous."""

    def __init__(self, url: str) -> None:
        self._url = url

    def reset(self, task: Mapping[str, Any], seed: int) -> StepResult:
        """See `Environment.reset`."""
        self._episode, self._calls = task["episode"], 0
        return StepResult("ready")

    def step(self, action: str) -> StepResult:
        """See `Environment.step`."""
        self._calls += 1
        body = json.dumps({"name": f"{self._episode} {self._calls}", "action": action}).encode()
        request = urllib.request.Request(self._url, body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request) as answer:
            return StepResult(answer.read().decode())


def serve() -> None:
    """A server that answers a POST after `ANSWER_S`, or never, and a GET with how often it met each name."""
    from aiohttp import web

    met: collections.Counter[str] = collections.Counter()

    async def answer(request: web.Request) -> web.Response:
        asked = await request.json()
        met[asked["name"]] += 1
        await asyncio.sleep(1e6 if asked["action"] == HANG else ANSWER_S)
        return web.Response(text="done")

    async def tell(request: web.Request) -> web.Response:
        return web.json_response(met)

    async def run() -> None:
        application = web.Application()
        application.add_routes([web.post("/", answer), web.get("/", tell)])
        runner = web.AppRunner(application)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0, backlog=1024)
        await site.start()
        print(runner.addresses[0][1], flush=True)
        await asyncio.Event().wait()

    asyncio.run(run())


@contextmanager
def server() -> Iterator[str]:
    """The address of a server in a process of its own."""
    process = subprocess.Popen([sys.executable, __file__, "--serve"], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{process.stdout.readline().strip()}/"
    finally:
        process.kill()
        process.wait()


@dataclass
class Measured:
    """What the episodes of one run met.

    Attributes:
        took: seconds that each answered call took.
        lost: kinds of failures.
        wall: seconds of all calls together.
        worker: processor seconds of this process, which stands for the rollout worker.
    """

    took: list[float]
    lost: list[str]
    wall: float = 0.0
    worker: float = 0.0


async def play(pool: EnvironmentPool, episodes: int, rounds: int, hangs: bool = False) -> Measured:
    """Every episode makes `rounds` calls, one after the other; the second call of the first episode may hang."""
    measured = Measured([], [])

    async def steps(number: int, handle: Handle) -> None:
        for turn in range(rounds):
            began = time.perf_counter()
            try:
                await handle.step(HANG if hangs and number == 0 and turn == 1 else "call")
            except EnvironmentFailure as failure:
                measured.lost.append(failure.kind)
                return
            measured.took.append(time.perf_counter() - began)

    opened = await asyncio.gather(*(pool.open({"episode": f"{hangs} {n}"}, 0) for n in range(episodes)))
    began, worked = time.perf_counter(), time.process_time()
    await asyncio.gather(*(steps(number, handle) for number, (handle, _) in enumerate(opened)))
    measured.wall, measured.worker = time.perf_counter() - began, time.process_time() - worked
    await asyncio.gather(*(handle.close() for handle, _ in opened))
    return measured


def report(name: str, measured: Measured) -> None:
    """One line of the table."""
    calls, took = len(measured.took), measured.took
    print(
        f"{name:28}{calls / measured.wall:12.1f}{statistics.median(took):10.2f}{max(took):8.2f}"
        f"{1e3 * measured.worker / calls:12.3f}"
    )


async def compare(url: str, arguments: argparse.Namespace) -> dict[str, float]:
    """Print the table; returns what is promised."""
    print(f"{'':28}{'calls/s':>12}{'median s':>10}{'max s':>8}{'worker ms':>12}")
    for processes in () if arguments.quick else arguments.processes:
        pool = EnvironmentPool("worlds:SlowSync", url, processes=processes, time_limit_s=600.0)
        await pool.start()
        episodes = min(arguments.episodes, MOST_EPISODES)
        report(f"synchronous, {processes} processes", await play(pool, episodes, 1))
        await pool.close()
    pool = EnvironmentPool("worlds:service", url, time_limit_s=LIMIT_S, asynchronous=AsyncOptions())
    await pool.start()
    # The first round makes the connections.
    await play(pool, arguments.episodes, 1)
    fast = await play(pool, arguments.episodes, arguments.rounds)
    report("asynchronous, 1 process", fast)
    hung = await play(pool, arguments.episodes, arguments.rounds, hangs=True)
    await pool.close()
    with urllib.request.urlopen(url) as answer:
        met = json.load(answer)
    repeated = sum(times - 1 for name, times in met.items() if name.startswith("True "))
    delay = max(hung.took) - max(fast.took)
    print(f"with one call that hangs: {hung.lost or 'nothing'} lost, {repeated} calls repeated at the server,", end=" ")
    print(f"the slowest of the others took {delay:+.2f} s, {pool.counts['replays']} episodes rebuilt")
    assert hung.lost == ["timeout"] and not repeated and not pool.counts["replays"], "a hang must cost one episode"
    return {
        "calls a second": len(fast.took) / fast.wall,
        "worker ms a call": 1e3 * fast.worker / len(fast.took),
        "delay by a hang, s": delay,
    }


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--episodes", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--processes", type=int, nargs="+", default=[2, 8, 32])
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        return serve()
    print(f"{arguments.episodes} episodes, calls that take {ANSWER_S:g} s")
    with server() as url:
        found = asyncio.run(compare(url, arguments))
    broken = [name for name, most in PROMISES.items() if (found[name] < most) == (name == "calls a second")]
    if arguments.quick and broken:
        sys.exit(f"promised and not kept: {', '.join(f'{name} {found[name]:.3g}' for name in broken)}")


if __name__ == "__main__":
    main()
