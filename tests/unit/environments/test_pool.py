"""The pool under faults: each costs exactly one episode, and the others go on where they were."""

import asyncio
import os
import signal
import subprocess
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fixtures.faulty_environment import HANG_S, Options
from verl_hier.environments.pool import EnvironmentFailure, EnvironmentPool
from verl_hier.environments.wire import CUT, LONGEST_TEXT, cut
from verl_hier.errors import RecipeError, RolloutError
from verl_hier.host.specs import EnvironmentSpec


def run(scenario, options=None, processes=1, time_limit_s=10.0):
    """Run `scenario(pool)` on a pool of counters and close it."""

    async def main():
        pool = EnvironmentPool("tests.fixtures.faulty_environment:build", options or Options(), processes, time_limit_s)
        try:
            return await scenario(pool)
        finally:
            await pool.close()

    return asyncio.run(main())


async def grown(pool, steps=3, start=0):
    handle, _ = await pool.open({"start": start}, seed=0)
    for _ in range(steps):
        await handle.step("add")
    return handle


def pid(handle):
    return handle.steps[-1].info["pid"]


def test_open_step_and_history():
    async def scenario(pool):
        handle, first = await pool.open({"start": 5}, seed=2)
        assert first.text == "ready 7"
        assert (await handle.step("add")).text == "now 8"
        assert not (await handle.step("fly")).valid
        assert handle.actions == ("add", "fly")
        assert [s.anchor for s in handle.steps] == ["7", "8", "8"]
        assert pid(handle) != os.getpid()
        assert pool.counts["resets"] == 1 and pool.counts["steps"] == 2

    run(scenario)


@pytest.mark.parametrize("action", ["raise", "exit", "lie"])
def test_an_exception_costs_its_own_episode_and_leaves_the_process_alive(action):
    async def scenario(pool):
        good, bad = await grown(pool), await grown(pool)
        with pytest.raises(EnvironmentFailure) as failure:
            await bad.step(action)
        assert failure.value.kind == "raised"
        with pytest.raises(EnvironmentFailure):
            await bad.step("add")
        before = pid(good)
        assert (await good.step("add")).text == "now 4"
        assert pid(good) == before
        assert pool.counts["raised"] == 1 and pool.counts["replays"] == 0

    run(scenario)


@pytest.mark.parametrize("action", ["hang", "spin"])
def test_a_hang_costs_its_own_episode_and_the_others_are_rebuilt(action):
    async def scenario(pool):
        good, bad = await grown(pool, 3), await grown(pool, 1)
        with pytest.raises(EnvironmentFailure) as failure:
            await asyncio.wait_for(bad.step(action), HANG_S / 2)
        assert failure.value.kind == "timeout"
        before = pid(good)
        assert (await good.step("add")).text == "now 4"
        assert pid(good) != before
        counts = pool.counts
        assert (counts["timeouts"], counts["replays"], counts["restarts"]) == (1, 1, 1)
        fresh, first = await pool.open({"start": 0}, 0)
        assert first.text == "ready 0"
        await fresh.close()

    run(scenario, time_limit_s=1.0)


def test_a_crash_blames_the_episode_whose_call_ran():
    async def scenario(pool):
        good, bad = await grown(pool, 2), await grown(pool, 2)
        waiting = asyncio.create_task(good.step("slow"))
        await asyncio.sleep(0)
        with pytest.raises(EnvironmentFailure) as failure:
            await bad.step("die")
        assert failure.value.kind == "killed"
        assert (await waiting).text == "now 3"
        assert (await good.step("add")).text == "now 4"
        assert pool.counts["killed"] == 1

    run(scenario)


def test_a_kill_between_calls_blames_nobody():
    async def scenario(pool):
        handles = [await grown(pool, n) for n in range(4)]
        os.kill(pid(handles[0]), signal.SIGKILL)
        answers = await asyncio.gather(*(handle.step("add") for handle in handles))
        assert [answer.text for answer in answers] == ["now 1", "now 2", "now 3", "now 4"]
        assert pool.counts["killed"] == 0 and pool.counts["replays"] == 4 and pool.counts["restarts"] == 1

    run(scenario)


def test_a_world_that_is_not_deterministic_is_found_out_by_the_replay():
    async def scenario(pool):
        handle = await grown(pool)
        os.kill(pid(handle), signal.SIGKILL)
        with pytest.raises(EnvironmentFailure, match="not deterministic") as failure:
            await handle.step("add")
        assert failure.value.kind == "replay_mismatch"
        assert pool.counts["replay_mismatch"] == 1

    run(scenario, Options(deterministic=False))


@pytest.mark.parametrize("can_fork", [True, False])
def test_a_fork_is_independent_and_survives_a_restart(can_fork):
    async def scenario(pool):
        handle = await grown(pool)
        copy = await handle.fork()
        assert (await copy.step("add")).text == "now 4"
        assert (await copy.step("add")).text == "now 5"
        assert (await handle.step("add")).text == "now 4"
        assert copy.actions == ("add",) * 5 and len(handle.steps) == 5
        assert pool.counts["forks"] == 1 and pool.counts["replays"] == (0 if can_fork else 1)
        await handle.close()
        os.kill(pid(copy), signal.SIGKILL)
        assert (await copy.step("add")).text == "now 6"

    run(scenario, Options(can_fork=can_fork), processes=2)


def test_a_world_that_forks_answers_once():
    async def scenario(pool):
        one, other = await grown(pool), await grown(pool, 1)
        assert (await one.step("fork")).text == "now 4"
        for _ in range(20):
            answers = await asyncio.gather(one.step("add"), other.step("add"))
        assert [answer.text for answer in answers] == ["now 24", "now 21"]
        assert pool.counts["replays"] == 0

    run(scenario)


def test_what_a_world_says_is_cut():
    async def scenario(pool):
        loud, wide = await grown(pool), await grown(pool)
        with pytest.raises(EnvironmentFailure) as failure:
            await loud.step("shout")
        assert len(str(failure.value)) < 3000
        step = await wide.step("swell")
        assert len(step.text) == LONGEST_TEXT and step.text.endswith(CUT) and len(step.anchor) == 64
        with pytest.raises(EnvironmentFailure, match="no finite number"):
            await wide.step("endless")

    run(scenario)


def test_neighbours_of_a_hang_do_not_wait_for_the_limit():
    limit = 20.0

    async def scenario(pool):
        bad, *good = [await grown(pool, 2) for _ in range(8)]
        hanging = asyncio.create_task(bad.step("hang"))
        await asyncio.sleep(0.1)
        answers = await asyncio.gather(*(handle.step("add") for handle in good))
        assert [answer.text for answer in answers] == ["now 3"] * 7
        assert not hanging.done() and pool.counts["left"] == 7
        with pytest.raises(EnvironmentFailure):
            await hanging

    run(scenario, time_limit_s=limit)


def test_worlds_that_cannot_be_replayed_have_no_neighbours():
    async def main():
        factory = "tests.fixtures.faulty_environment:build"
        pool = EnvironmentPool(factory, Options(deterministic=False), 1, 2.0, neighbours=1)
        try:
            bad, good = await grown(pool, 1), await grown(pool, 2)
            assert pid(bad) != pid(good)
            with pytest.raises(EnvironmentFailure):
                await bad.step("hang")
            assert (await good.step("add")).text.startswith("now 3")
            assert pool.counts["replays"] == 0
        finally:
            await pool.close()

    asyncio.run(main())


def test_a_cancelled_call_is_forgotten(tmp_path):
    async def scenario(pool):
        handle = await grown(pool)
        call = asyncio.create_task(handle.step(f"until {tmp_path / 'cancelled'}"))
        await asyncio.sleep(0.05)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        (tmp_path / "cancelled").touch()
        assert (await handle.step("add")).text == "now 4"
        assert handle.actions == ("add",) * 4

    run(scenario)


def test_closing_does_not_wait_for_a_hanging_call():
    async def scenario(pool):
        handle = await grown(pool, 0)
        call = asyncio.create_task(handle.step("hang"))
        await asyncio.sleep(0.1)
        await asyncio.wait_for(pool.close(), HANG_S / 2)
        with pytest.raises(EnvironmentFailure):
            await call

    run(scenario, time_limit_s=HANG_S)


def test_episodes_go_to_the_process_with_fewest():
    async def scenario(pool):
        handles = [await grown(pool, 0) for _ in range(6)]
        pids = [pid(handle) for handle in handles]
        assert sorted(pids.count(p) for p in set(pids)) == [3, 3]
        for handle in handles:
            if pid(handle) == pids[0]:
                await handle.close()
        fresh = await grown(pool, 0)
        assert pid(fresh) == pids[0]

    run(scenario, processes=2)


def test_what_the_recipe_got_wrong_is_said_in_the_worlds_own_words():
    async def refused(pool):
        with pytest.raises(RecipeError, match="pip install it"):
            await pool.open({"start": 0}, 0)

    run(refused, Options(refuse=True))

    async def missing():
        pool = EnvironmentPool("no_such_world:build")
        with pytest.raises(RolloutError, match="no_such_world"):
            await pool.open({}, 0)
        await pool.close()

    asyncio.run(missing())

    async def missing_package():
        spec = EnvironmentSpec("lake", "no_such_package.environment:build", extra="lake")
        pool = EnvironmentPool(spec.factory)
        with pytest.raises(RecipeError, match=r"environment.name: lake cannot .*pip install 'verl-hier\[lake\]'"):
            await pool.open({}, 0)
        await pool.close()

    asyncio.run(missing_package())
    with pytest.raises(RecipeError, match="at least one process"):
        EnvironmentPool("tests.fixtures.faulty_environment:build", processes=0)


def test_the_event_loop_stays_free_while_an_environment_is_slow(tmp_path):
    """The call ends only because the loop goes on meanwhile."""

    async def scenario(pool):
        handle = await grown(pool, 0)

        async def release():
            for _ in range(20):
                await asyncio.sleep(0.005)
            (tmp_path / "released").touch()

        task = asyncio.create_task(release())
        assert (await handle.step(f"until {tmp_path / 'released'}")).text == "now 1"
        await task

    run(scenario)


PARENT = """
import asyncio, os
from tests.fixtures.faulty_environment import Options
from verl_hier.environments.pool import EnvironmentPool

async def main():
    pool = EnvironmentPool("tests.fixtures.faulty_environment:build", Options(), 1, 1000.0)
    handle, first = await pool.open({"start": 0}, 0)
    print(first.info["pid"], flush=True)
    call = asyncio.create_task(handle.step(%r))
    await asyncio.sleep(0.3)
    os._exit(1)

asyncio.run(main())
"""


@pytest.mark.parametrize("action", ["add", "hang"])
def test_processes_end_with_their_parent(action):
    folder = os.path.dirname(__file__)
    parent = subprocess.run(
        [sys.executable, "-c", PARENT % action],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([folder, *filter(None, sys.path)])},
        capture_output=True,
        text=True,
        timeout=60,
    )
    child = int(parent.stdout)
    deadline = time.monotonic() + 60
    while os.path.exists(f"/proc/{child}") and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not os.path.exists(f"/proc/{child}")


def test_a_process_starts_without_heavy_packages():
    code = "import verl_hier.environments.child, sys; print([m for m in ('torch', 'verl', 'ray') if m in sys.modules])"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert answer.stdout.strip() == "[]"


@given(st.text(max_size=60), st.integers(0, 60))
def test_a_text_that_is_cut_is_no_longer_than_allowed_and_says_so(text, most):
    short = cut(text, most)
    assert short == text if len(text) <= most else len(short) == most and (most < len(CUT) or short.endswith(CUT))
