#!/usr/bin/env python3
"""What a request costs the gateway beyond a plain endpoint: 256 light clients, and real programs among them.

    python scripts/bench/gateway.py
    python scripts/bench/gateway.py --installed runs/programs --programs codex pi claude_code --rounds 5
    python scripts/bench/gateway.py --programs --profile

Both sides are processes of their own on the same HTTP server library, with the same clients, programs, words of the
policy and time that it takes, and play in turns. The gateway's is its endpoint with the environments behind it, which
know the conversations; the plain one reads the JSON of a request and writes an answer (`plain_endpoint.py`). Processor
time is that of the serving process, start and end of all episodes included; a wait is what a client waits for an answer
beyond the time of the policy. Exits with 1 where processor time or median wait are above the limits.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import multiprocessing
import os
import pstats
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from light_clients import Client, Load
from plain_endpoint import serving as plainly_serving

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.fixtures.agent_programs import EXAMPLES, SHELL, SUBMITS, TASK, NotInstallable, call, installed  # noqa: E402
from tests.fixtures.hostile_gateway import Tally, timed_callbacks  # noqa: E402
from verl_hier.environments.garbage import collect_rarely  # noqa: E402
from verl_hier_plugins.environments.gateway.agent import Agents  # noqa: E402
from verl_hier_plugins.environments.gateway.answers import COUNTS  # noqa: E402
from verl_hier_plugins.environments.gateway.endpoint import Endpoint, serving  # noqa: E402
from verl_hier_plugins.environments.gateway.environment import GatewayEnvironment  # noqa: E402
from verl_hier_plugins.environments.gateway.options import GatewayOptions  # noqa: E402

MOST_TIMES, MOST_MS = 1.5, 5.0
"""Processor time of a request, in that of the plain endpoint, and milliseconds of its median wait: the limits."""
SDK = "agents_sdk"
HOUSE = {"instruction": "find the ball", "rooms": {"hall": "a lamp", "attic": "the ball"}, "answers": ["attic"]}


@dataclass(frozen=True)
class Program:
    """A real program among the clients: its function, its task, and what the policy says to it."""

    agent: str
    task: Mapping[str, Any]
    said: Sequence[str]
    preload: bool = False

    @classmethod
    def of(cls, name: str, turns: int) -> Program:
        """The program of examples/agents of a name, with so many turns."""
        if name == SDK:
            looks = [f"I look.\n{call('look', room='hall')}"] * (turns - 1)
            return cls(f"{EXAMPLES.with_name('agents_sdk.py')}:play", HOUSE, [*looks, "answer attic"], True)
        looks = [f"I look.\n{SHELL[name]}"] * (turns - 1)
        return cls(f"{EXAMPLES}:{name}", TASK, [*looks, SUBMITS.get(name, "six")])

    @property
    def options(self) -> GatewayOptions:
        return GatewayOptions(agent=self.agent, preload=self.preload, data_path="given", context_tokens=400_000)


class Apart:
    """The agent of a light client, which is a coroutine of another process; in place of `agent.AgentProcess`."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()
        self.status, self.result, self.log = 0, "", ""

    async def stop(self) -> None:
        """See `AgentProcess.stop`."""


@dataclass
class Side:
    """One serving process, and what it does in a round.

    Attributes:
        load: of the light clients.
        programs: that play among them.
        channel: to the process of the clients.
        apart: light clients by number.
        requests: answered in this round.
    """

    load: Load
    programs: Sequence[Program]
    channel: Connection
    apart: dict[int, Apart] = field(default_factory=dict)
    requests: int = 0

    async def round(self) -> None:
        raise NotImplementedError

    async def start(self, task: Mapping[str, Any], variables: Mapping[str, str]) -> Apart:
        """Begin a light client with the key of its episode; see `Agents.start`."""
        number = task["client"]
        self.apart[number] = Apart()
        port = int(variables["OPENAI_BASE_URL"].removesuffix("/v1").rpartition(":")[2])
        self.channel.send((number, port, variables["OPENAI_API_KEY"]))
        return self.apart[number]


@dataclass
class Gateway(Side):
    """The gateway's endpoint, and the environment of each client."""

    endpoint: Endpoint | None = None

    async def round(self) -> None:
        clients = [self._light(each) for each in range(self.load.clients)]
        await asyncio.gather(*clients, *map(self._program, range(len(self.programs))))

    async def _light(self, number: int) -> None:
        said = [self.load.says(turn) for turn in range(self.load.turns)]
        await self._play(self, {"client": number}, said, self.load.waits(number))

    async def _program(self, number: int) -> None:
        program = self.programs[number]
        agents = Agents(program.options)
        try:
            await self._play(agents, program.task, program.said, [self.load.wait_s] * len(program.said))
        finally:
            await agents.close()

    async def _play(self, agents: Any, task: Mapping[str, Any], said: Sequence[str], waits: Sequence[float]) -> None:
        assert self.endpoint is not None
        world = GatewayEnvironment(self.endpoint, agents, lambda task, result: 0.0)
        try:
            step = await world.reset(task, 0)
            for text, wait in zip(said, waits, strict=True):
                await asyncio.sleep(wait)
                step = await world.step(f"{text}{COUNTS}9000,{len(text)}")
            if not step.done or step.info["ended"] != "result":
                raise RuntimeError(f"{task}: {step.info}")
            self.requests += len(world.exchanges)
        finally:
            await world.close()


@dataclass
class Plain(Side):
    """An endpoint that knows nothing of conversations."""

    port: int = 0
    said: dict[str, list[tuple[str, float]]] = field(default_factory=dict)

    async def round(self) -> None:
        url, ends = f"http://127.0.0.1:{self.port}/v1", []
        for number in range(self.load.clients):
            key = f"client-{number}"
            said = [self.load.says(turn) for turn in range(self.load.turns)]
            self.said[key] = [*zip(said, self.load.waits(number), strict=True)]
            light = await self.start({"client": number}, {"OPENAI_BASE_URL": url, "OPENAI_API_KEY": key})
            ends.append(light.ended.wait())
        await asyncio.gather(*ends, *(self._program(url, each) for each in range(len(self.programs))))

    async def _program(self, url: str, number: int) -> None:
        program, key = self.programs[number], f"program-{number}"
        self.said[key] = [(text, self.load.wait_s) for text in program.said]
        agents = Agents(program.options)
        variables = {"OPENAI_BASE_URL": url, "OPENAI_API_KEY": key, "OPENAI_MODEL": "policy", "NO_PROXY": "127.0.0.1"}
        variables |= {"ANTHROPIC_BASE_URL": url.removesuffix("/v1"), "ANTHROPIC_API_KEY": key}
        variables |= {"ANTHROPIC_MODEL": "policy", "AGENT_CONTEXT_TOKENS": "400000"}
        try:
            given = {name: value for name, value in program.task.items() if name != "answers"}
            agent = await agents.start(given, variables)
            await agent.ended.wait()
            if agent.status or self.said[key]:
                raise RuntimeError(f"{program.agent} has left {len(self.said[key])} turns: {agent.log}")
        finally:
            await agents.close()

    async def says(self, key: str) -> str:
        """See `plain_endpoint.Says`."""
        text, wait = self.said[key].pop(0)
        self.requests += 1
        await asyncio.sleep(wait)
        return text


@asynccontextmanager
async def opened(kind: str, load: Load, programs: Sequence[Program], channel: Connection) -> AsyncIterator[Side]:
    """A side with its server."""
    if kind == "plain":
        plain = Plain(load, programs, channel)
        async with plainly_serving(plain.says) as plain.port:
            yield plain
    else:
        options = GatewayOptions(starts_at_once=load.clients + len(programs), agent_s=3600.0, context_tokens=400_000)
        async with serving(options) as endpoint:
            yield Gateway(load, programs, channel, endpoint=endpoint)


def serve(kind: str, load: Load, programs: Sequence[Program], profile: bool, channel: Connection) -> None:
    """A serving process: a round for each order; `(client, port, key)` for each light client, and what it took."""

    async def main() -> None:
        loop, orders = asyncio.get_running_loop(), asyncio.Queue[Any]()
        async with opened(kind, load, programs, channel) as side:

            def heard() -> None:
                while channel.poll():
                    order = channel.recv()
                    if isinstance(order, int):
                        side.apart[order].ended.set()
                    else:
                        orders.put_nowait(order)

            loop.add_reader(channel.fileno(), heard)
            collect_rarely()  # as the process of asynchronous environments does
            while (order := await orders.get()) != "end":
                side.requests, tally = 0, Tally()
                meter = cProfile.Profile(time.process_time)
                if profile:
                    meter.enable()
                began = time.process_time()
                with timed_callbacks(loop, tally) if order == "time" else nullcontext():
                    await side.round()
                took = time.process_time() - began
                meter.disable()
                if profile and kind == "gateway":
                    pstats.Stats(meter).sort_stats("cumulative").print_stats(70)
                    pstats.Stats(meter).sort_stats("tottime").print_stats(40)
                channel.send((took, side.requests, tally.longest_s, tally.longest))
            loop.remove_reader(channel.fileno())

    asyncio.run(main())


@dataclass
class Shown:
    """What the rounds of a side have shown: milliseconds of the processor a request, waits and longest callbacks."""

    cpu_ms: list[float] = field(default_factory=list)
    waits_ms: list[float] = field(default_factory=list)
    longest_ms: float = 0.0
    longest: str = ""
    requests: int = 0
    bytes: list[int] = field(default_factory=list)

    def line(self) -> str:
        middle, last = statistics.median(self.waits_ms), statistics.quantiles(self.waits_ms, n=100)[98]
        cpu = " ".join(f"{each:.2f}" for each in self.cpu_ms)
        return (
            f"{statistics.median(self.cpu_ms):.2f} ms of the processor a request ({cpu}), "
            f"wait {middle:.1f} ms (median) and {last:.0f} ms (99th percentile), "
            f"{self.requests} requests of {statistics.mean(self.bytes) / 1024:.0f} KiB, "
            f"longest callback {self.longest_ms:.0f} ms"
        )


async def round_of(channel: Connection, load: Load, shown: Shown, timed: bool) -> None:
    """One round of all clients against a side; one in which callbacks are timed counts for nothing else."""
    loop = asyncio.get_running_loop()
    clients: list[Client] = []
    playing: list[asyncio.Task[None]] = []
    over = loop.create_future()

    async def plays(client: Client, port: int, key: str) -> None:
        await asyncio.sleep(load.waits(client.number)[0] - load.wait_s / 2)  # they do not all begin at once
        await client.play(port, key)
        channel.send(client.number)

    def heard() -> None:
        while channel.poll():
            said = channel.recv()
            if len(said) == 3:
                number, port, key = said
                clients.append(Client(number, load))
                playing.append(loop.create_task(plays(clients[-1], port, key)))
            else:
                over.set_result(said)

    loop.add_reader(channel.fileno(), heard)
    try:
        channel.send("time" if timed else "begin")
        took, requests, longest, what = await over
        await asyncio.gather(*playing)
    finally:
        loop.remove_reader(channel.fileno())
    if timed:
        shown.longest_ms, shown.longest = 1000 * longest, what
        return
    shown.cpu_ms.append(1000 * took / requests)
    shown.waits_ms += [1000 * wait for client in clients for wait in client.waits]
    shown.bytes += [size for client in clients for size in client.sent]
    shown.requests += requests


def programs_of(options: argparse.Namespace, folder: Path) -> list[Program]:
    """The programs that play, in turn until there are as many as wanted; what cannot be installed is left out."""
    found = []
    for name in options.programs:
        try:
            if name != SDK:
                os.environ["PATH"] += f":{installed(name, options.installed or folder)}"
            found.append(name)
        except NotInstallable as error:
            print(f"{name}: {error}")
    many = options.real if found else 0
    return [Program.of(found[each % len(found)], options.program_turns) for each in range(many)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=240, help="light ones")
    parser.add_argument("--real", type=int, default=16, help="real programs among them")
    parser.add_argument(
        "--programs", nargs="*", choices=[SDK, *SHELL], default=[SDK], help="which; none leaves them out"
    )
    parser.add_argument("--program-turns", type=int, default=6)
    parser.add_argument("--turns", type=int, default=12, help="of a light client")
    parser.add_argument("--tool", type=int, default=1200, help="characters of each of the 12 tools of a light client")
    parser.add_argument("--result", type=int, default=2000, help="characters that a tool returns to a light client")
    parser.add_argument("--wait", type=float, default=1.5, help="seconds that the policy takes on average")
    parser.add_argument("--rounds", type=int, default=3, help="of each side")
    parser.add_argument(
        "--installed", type=Path, help="folder in which programs are installed, and kept; omitted: none"
    )
    parser.add_argument("--profile", action="store_true", help="print where the gateway's time goes")
    options = parser.parse_args()
    load = Load(options.clients, options.turns, tool=options.tool, result=options.result, wait_s=options.wait)
    shown = {"plain": Shown(), "gateway": Shown()}
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        programs = programs_of(options, Path(folder))
        channels = {}
        for kind in shown:
            channels[kind], theirs = context.Pipe()
            arguments = (kind, load, programs, options.profile, theirs)
            context.Process(target=serve, args=arguments, daemon=True).start()
        for number in range(options.rounds + 1):
            for kind in [*shown] if number % 2 else reversed([*shown]):
                asyncio.run(round_of(channels[kind], load, shown[kind], timed=number == options.rounds))
        for channel in channels.values():
            channel.send("end")
    for kind, each in shown.items():
        print(f"{kind}: {each.line()}")
    print(f"the gateway's longest callback: {shown['gateway'].longest}")
    pairs = zip(shown["gateway"].cpu_ms, shown["plain"].cpu_ms, strict=True)
    times = statistics.median(ours / theirs for ours, theirs in pairs)
    middles = [statistics.median(each.waits_ms) for each in (shown["gateway"], shown["plain"])]
    print(
        f"processor time {times:.2f} times that of the plain endpoint (at most {MOST_TIMES}); median wait "
        f"{middles[0] - middles[1]:.1f} ms longer (at most {MOST_MS:.0f}), {middles[0] / middles[1]:.2f} times"
    )
    return int(times > MOST_TIMES or middles[0] - middles[1] > MOST_MS)


if __name__ == "__main__":
    sys.exit(main())
