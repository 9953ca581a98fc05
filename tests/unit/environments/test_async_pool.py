"""Asynchronous environments behind the pool: side by side, and a fault costs exactly one episode."""

import asyncio
import contextlib
import dataclasses
import os
import re
import signal
import time

import pytest

from tests.fixtures.faulty_async_environment import HANG_S, MOMENT_S, Options
from verl_hier.environments.asynchronous import AsyncOptions
from verl_hier.environments.pool import EnvironmentFailure, EnvironmentPool
from verl_hier.errors import RecipeError, RolloutError
from verl_hier.recipe.composed import ComposedRecipe
from verl_hier.recipe.runner import RolloutRunner

SERVICE = "tests.fixtures.faulty_async_environment:service"


@pytest.fixture
def world(tmp_path):
    """Runs a scenario on a pool of counters, and says what happened in their world."""

    class World:
        options = Options(str(tmp_path / "log"))

        def run(self, scenario, processes=1, time_limit_s=10.0, fork="native", normalise=None, **calls):
            async def main():
                pool = EnvironmentPool(
                    SERVICE,
                    self.options,
                    processes,
                    time_limit_s,
                    asynchronous=AsyncOptions(**{"close_s": 2.0, **calls}),
                    fork=fork,
                    normalise=normalise,
                )
                try:
                    return await scenario(pool)
                finally:
                    await pool.close()

            return asyncio.run(main())

        def having(self, **options):
            self.options = dataclasses.replace(self.options, **options)
            return self

        @property
        def log(self):
            path = tmp_path / "log"
            return path.read_text().splitlines() if path.exists() else []

    return World()


async def grown(pool, steps=0, start=0):
    handle, _ = await pool.open({"start": start}, seed=0)
    for _ in range(steps):
        await handle.step("add")
    return handle


def pid(handle):
    return handle.steps[-1].info["pid"]


async def kill(number):
    """Returns when the process has ended, so that no call can be taken for one that it had begun."""

    def ended():
        try:
            return os.waitid(os.P_PID, number, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:
            return True

    os.kill(number, signal.SIGKILL)
    await until(ended)


async def failure_of(call):
    with pytest.raises(EnvironmentFailure) as failure:
        await call
    return failure.value


def failing(scenario):
    return lambda pool: failure_of(scenario(pool))


def without_numbers(text):
    return re.sub(r"session \d+", "session", text)


async def until(condition):
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)


def test_calls_run_side_by_side_in_one_process(world):
    async def scenario(pool):
        handles = [await grown(pool, start=n) for n in range(40)]
        began = time.monotonic()
        answers = await asyncio.gather(*(handle.step("wait") for handle in handles))
        assert time.monotonic() - began < 10 * MOMENT_S
        assert [answer.text for answer in answers] == [f"now {n + 1}" for n in range(40)]
        assert len({pid(handle) for handle in handles}) == 1 and pid(handles[0]) != os.getpid()
        assert (pool.counts["resets"], pool.counts["steps"], pool.counts["most_in_flight"]) == (40, 40, 40)
        assert not (await handles[0].step("fly")).valid

    world.run(scenario)


@pytest.mark.parametrize("action", ["hang", "stubborn"])
def test_a_hang_costs_its_own_episode_and_no_other_anything(world, action):
    async def scenario(pool):
        good, bad = await grown(pool, 3), await grown(pool, 1)
        hanging = asyncio.create_task(failure_of(bad.step(action)))
        while not hanging.done():
            began = time.monotonic()
            await good.step("add")
            assert time.monotonic() - began < 0.5
            await asyncio.sleep(0.05)
        assert hanging.result().kind == "timeout" and "its environment was closed" in hanging.result().message
        counts = pool.counts
        assert (counts["timeouts"], counts["replays"], counts["restarts"]) == (1, 0, 0)
        if action == "hang":
            await until(lambda: "closed" in world.log)

    world.run(scenario, time_limit_s=1.0)


def test_code_that_blocks_is_named_and_the_others_go_on_in_a_new_process(world):
    async def scenario(pool):
        waiting, idle, bad = await grown(pool, 1), await grown(pool, 2), await grown(pool)
        before = pid(idle)
        other = asyncio.create_task(waiting.step("wait"))
        await asyncio.sleep(0.05)
        failure = await asyncio.wait_for(failure_of(bad.step("block")), HANG_S / 2)
        assert failure.kind == "timeout" and "asyncio.to_thread" in failure.message
        assert (await other).text == "now 2" and (await idle.step("add")).text == "now 3"
        assert pid(idle) != before
        assert (pool.counts["restarts"], pool.counts["killed"]) == (1, 0)

    world.run(scenario, time_limit_s=4.0)


@pytest.mark.parametrize("action", ["raise", "exit", "lie", "cancel"])
def test_an_exception_costs_its_own_episode(world, action):
    async def scenario(pool):
        good, bad = await grown(pool), await grown(pool)
        assert (await failure_of(bad.step(action))).kind == "raised"
        assert (await failure_of(bad.step("add"))).kind == "raised"
        await until(lambda: world.log.count("closed") == 1)
        before = pid(good)
        assert (await good.step("add")).text == "now 1" and pid(good) == before
        assert pool.counts["raised"] == 1 and pool.counts["replays"] == 0

    world.run(scenario)


def test_a_crash_costs_the_episodes_whose_calls_ran(world):
    async def scenario(pool):
        running, idle, bad = await grown(pool), await grown(pool, 2), await grown(pool)
        other = asyncio.create_task(failure_of(running.step("hang")))
        await asyncio.sleep(0.1)
        assert (await failure_of(bad.step("die"))).kind == "killed" and (await other).kind == "killed"
        assert (await idle.step("add")).text == "now 3"
        assert pool.counts["killed"] == 2 and pool.counts["replays"] == 1

    world.run(scenario)


def test_a_kill_between_calls_blames_nobody(world):
    async def scenario(pool):
        handles = [await grown(pool, n) for n in range(3)]
        await kill(pid(handles[0]))
        answers = await asyncio.gather(*(handle.step("add") for handle in handles))
        assert [answer.text for answer in answers] == ["now 1", "now 2", "now 3"]
        assert pool.counts["killed"] == 0 and pool.counts["restarts"] == 1

    world.run(scenario)


def test_a_cancelled_call_ends_in_the_world_and_the_episode_is_rebuilt(world):
    async def scenario(pool):
        handle = await grown(pool, 2)
        call = asyncio.create_task(handle.step("hang"))
        await until(lambda: "hang" in world.log)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await until(lambda: "closed" in world.log)
        assert (await handle.step("add")).text == "now 3" and handle.actions == ("add",) * 3
        assert pool.counts["replays"] == 1

    world.run(scenario)


@pytest.mark.parametrize("method", ["open", "fork", "replay"])
def test_what_a_cancelled_call_had_made_is_closed(world, method):
    async def scenario(pool):
        for ticks in range(0, 40, 4):
            handle = await grown(pool, 1)
            work = {"open": lambda: grown(pool), "fork": handle.fork, "replay": handle.replay}[method]
            call = asyncio.ensure_future(work())
            for _ in range(ticks):
                await asyncio.sleep(0.0002)
            call.cancel()
            (made,) = await asyncio.gather(call, return_exceptions=True)
            if made is not None and not isinstance(made, BaseException):
                await made.close()
            await handle.close()
        resets = world.log.count("reset")
        await until(lambda: world.log.count("closed") >= resets)

    world.having(can_fork=False).run(scenario)
    assert world.log[-1] == "service over"


def test_who_waits_for_a_slot_is_charged_nothing(world):
    async def scenario(pool):
        handles = [await grown(pool) for _ in range(6)]
        answers = await asyncio.gather(*(handle.step("wait") for handle in handles))
        assert [answer.text for answer in answers] == ["now 1"] * 6
        assert pool.counts["most_in_flight"] == 1 and pool.counts["timeouts"] == 0
        assert pool.counts["waited_ms"] > 1000 * MOMENT_S * (1 + 2 + 3 + 4)

    world.run(scenario, time_limit_s=4 * MOMENT_S, calls_in_flight=1)


def test_who_gives_up_waiting_for_a_slot_is_not_rebuilt(world):
    async def scenario(pool):
        first, second = await grown(pool, 1), await grown(pool, 1)
        busy = asyncio.create_task(first.step("wait"))
        await asyncio.sleep(0.05)
        queued = asyncio.create_task(second.step("add"))
        await asyncio.sleep(0.05)
        queued.cancel()
        await asyncio.gather(busy, queued, return_exceptions=True)
        assert (await second.step("add")).text == "now 2" and pool.counts["replays"] == 0

    world.run(scenario, calls_in_flight=1)


def test_a_call_that_was_not_taken_is_made_again(world):
    async def scenario(pool):
        patient, unlucky = await grown(pool), await grown(pool)
        assert (await patient.step("busy 2")).text == "now 1"
        assert patient.actions == ("busy 2",) and world.log.count("busy 2") == 1
        assert pool.counts["retries"] == 2
        failure = await failure_of(unlucky.step("busy 99"))
        assert failure.kind == "unavailable" and "429" in failure.message
        assert (pool.counts["unavailable"], pool.counts["retries"], pool.counts["replays"]) == (1, 4, 0)
        await until(lambda: world.log.count("closed") == 1)

    world.run(scenario, retries=2)


def test_a_lost_session_is_restored_once(world):
    async def scenario(pool):
        handle = await grown(pool, 2)
        assert (await handle.step("lose 1")).text == "now 3" and handle.actions == ("add", "add", "lose 1")
        assert pool.counts["replays"] == 1 and pool.counts["session_lost"] == 0
        failure = await failure_of(handle.step("lose 99"))
        assert failure.kind == "session_lost" and "the socket was closed" in failure.message
        assert pool.counts["session_lost"] == 1

    world.run(scenario)


def test_resets_have_a_limit_of_their_own(world):
    async def scenario(pool):
        failure = await failure_of(pool.open({"start": 0}, 0))
        assert failure.kind == "timeout" and "open took longer than 0.5 s" in failure.message

    world.having(hangs="reset").run(scenario, time_limit_s=HANG_S, open_s=0.5)


def test_closing_has_a_limit_of_its_own(world):
    async def scenario(pool):
        handle = await grown(pool)
        began = time.monotonic()
        await handle.close()
        await grown(pool)  # still open when the pool is closed
        await pool.close()
        assert time.monotonic() - began < 5

    world.having(hangs="close").run(scenario, close_s=0.5)
    assert world.log[-1] == "service over"


@pytest.mark.parametrize("asks_again", [True, False])
def test_a_restored_world_is_asked_again_only_if_it_wants_to(world, asks_again):
    async def scenario(pool):
        handle = await grown(pool, 3)
        await kill(pid(handle))
        assert (await handle.step("add")).text == "now 4"
        copy = await handle.fork()
        assert (await copy.step("add")).text == "now 5" and (await handle.step("add")).text == "now 5"

    world.having(asks_again=asks_again).run(scenario)
    assert world.log.count("add") == (13 if asks_again else 6)


def test_a_recorded_world_is_sent_nothing_again(world):
    async def scenario(pool):
        handle = await grown(pool, 3)
        copies = [await handle.fork() for _ in range(3)]
        assert world.log.count("reset") == 1 and pool.counts["replays"] == 0
        assert [(await copy.step("add")).text for copy in copies[:2]] == ["now 4"] * 2
        resumed = await pool.resume(handle.task, handle.seed, handle.actions[:2], handle.steps[:3])
        assert (await resumed.step("add")).text == "now 3" and resumed.actions == ("add",) * 3
        await handle.close()
        assert (await copies[2].step("add")).text == "now 4"

    world.having(asks_again=False).run(scenario, fork="recorded")
    assert world.log.count("add") == 7 and world.log.count("reset") == 1


def test_what_differs_between_sessions_is_taken_out_before_a_replay_compares(world):
    async def scenario(pool):
        handle = await grown(pool)
        await handle.step("session")
        await kill(pid(handle))
        return (await handle.step("add")).text

    assert world.run(scenario, normalise=without_numbers) == "now 2"
    assert world.run(failing(scenario)).kind == "replay_mismatch"


@pytest.mark.parametrize("can_fork", [True, False])
def test_a_fork_is_independent(world, can_fork):
    async def scenario(pool):
        handle = await grown(pool, 3)
        copy = await handle.fork()
        assert (await copy.step("add")).text == (await handle.step("add")).text == "now 4"
        await handle.close()
        assert (await copy.step("add")).text == "now 5"
        assert pool.counts["forks"] == 1 and pool.counts["replays"] == (0 if can_fork else 1)

    world.having(can_fork=can_fork).run(scenario, processes=2)


def test_closing_the_pool_closes_what_is_open_and_waits_for_no_call(world):
    async def scenario(pool):
        idle, bad = await grown(pool), await grown(pool)
        call = asyncio.create_task(failure_of(bad.step("hang")))
        await until(lambda: "hang" in world.log)
        began = time.monotonic()
        await pool.close()
        assert time.monotonic() - began < 5 and (await call).kind == "killed"
        with pytest.raises(RuntimeError, match="closed"):
            await idle.step("add")

    world.run(scenario, time_limit_s=HANG_S)
    assert sorted(world.log[-3:]) == ["closed", "closed", "service over"]


def test_a_service_that_does_not_start_says_why(world):
    async def scenario(pool):
        await pool.open({"start": 0}, 0)

    with pytest.raises(RecipeError, match=r"there is no server; start one\."):
        world.having(refuse="recipe").run(scenario)
    with pytest.raises(RolloutError, match=r"service .* does not start: ConnectionRefusedError: nobody listens"):
        world.having(refuse="raise").run(scenario)


@pytest.mark.parametrize(("workers", "most"), [(1, 7), (3, 2), (9, 1)])
def test_rollout_workers_share_the_calls_in_flight(workers, most):
    recipe = ComposedRecipe.named("himac_mcp", ["hier.rollout.asynchronous.calls_in_flight=7"])

    async def scenario():
        pool = RolloutRunner(recipe, None, 1).pool(workers)
        for _ in range(8):
            with contextlib.suppress(TimeoutError, asyncio.TimeoutError):
                await asyncio.wait_for(pool.slots.__aenter__(), 0.01)
        assert pool.counts["most_in_flight"] == most
        await pool.close()

    asyncio.run(scenario())
