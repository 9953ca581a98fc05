"""The pool without processes: what it asks of one, for how long, and what each answer and each error makes of an
episode."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.fixtures import faulty_async_environment
from verl_hier.environments import async_child, async_process, blocking
from verl_hier.environments import pool as pools
from verl_hier.environments.async_process import AsyncProcess, Life
from verl_hier.environments.asynchronous import AsyncOptions, SessionLost, Unavailable, WrongServer
from verl_hier.environments.base import StepResult
from verl_hier.environments.child_process import Died, Garbled, Raised, Refused, TookTooLong
from verl_hier.environments.in_worker import InWorker
from verl_hier.environments.pool import EnvironmentFailure, EnvironmentPool
from verl_hier.environments.process import Process, Stuck
from verl_hier.environments.slots import Slots
from verl_hier.environments.surroundings import ProcessOptions
from verl_hier.environments.wire import HEADER, pack
from verl_hier.errors import RecipeError
from verl_hier.host.specs import EnvironmentSpec

FACTORY = "tests.fixtures.faulty_environment:build"
TASK = {"start": 1}


class Fake:
    """Answers by a script: an exception is raised, a function is called, everything else is said. Behind its end each
    call is answered by its method."""

    def __init__(self, *script):
        self.load, self.life, self.lives, self.busy_s = 0, -1, 0, 0.0
        self.script, self.asked, self.dropped, self.ended = list(script), [], [], []

    async def alive(self):
        if self.life < 0:
            self.life, self.lives = self.lives, self.lives + 1
        return self.life

    async def call(self, method, number, arguments, limit_s, life=None, patience_s=None):
        self.asked.append((method, number, arguments, limit_s, life, patience_s))
        said = self.script.pop(0) if self.script else None
        said = said() if callable(said) else said
        if isinstance(said, BaseException):
            raise said
        usual = {"fork": True, "close": None}
        return usual.get(method, {"text": "more"}) if said is None else said

    async def drop(self, number, life=None):
        self.dropped.append((number, life))

    async def kill(self):
        self.ended.append("kill")

    async def stop(self):
        self.ended.append("stop")

    @property
    def methods(self):
        return [asked[0] for asked in self.asked]


def pool_of(*fakes, made=(), **given):
    """A pool of these processes, which makes those of `made` when it needs further ones."""
    found = EnvironmentPool(FACTORY, **{"time_limit_s": 8.0, **given})
    further = iter(made)
    found._processes, found._make = list(fakes), lambda: next(further)
    found._jitter = SimpleNamespace(uniform=lambda low, high: low * high)
    return found


def run(coroutine):
    return asyncio.run(coroutine)


async def opened(pool, *actions):
    handle, _ = await pool.open(TASK, 7)
    for action in actions:
        await handle.step(action)
    return handle


def lost(coroutine, kind, words=""):
    async def main():
        with pytest.raises(EnvironmentFailure) as caught:
            await coroutine
        return caught.value

    failure = run(main())
    assert failure.kind == kind and words in failure.message, failure
    return failure


# What is asked


def test_calls_have_their_limits_and_are_counted():
    fake = Fake({"text": "0"}, {"text": "1", "reward": 0.5})
    pool = pool_of(fake)
    handle = run(opened(pool, "a"))
    assert fake.asked == [("open", 0, (TASK, 7), 8.0, 0, 2.0), ("step", 0, ("a",), 8.0, 0, 2.0)]
    assert [step.text for step in handle.steps] == ["0", "1"] and handle.steps[1].reward == 0.5
    assert handle.actions == ("a",) and (handle.task, handle.seed) == (TASK, 7) and fake.load == 1
    wanted = {"calls": 2, "resets": 1, "steps": 1}
    assert {name: count for name, count in pool.counts.items() if count} == wanted
    run(handle.close())
    run(handle.close())
    assert fake.asked[2:] == [("close", 0, (), 8.0, None, None)] and fake.load == 0 and pool.counts["calls"] == 2
    with pytest.raises(RuntimeError, match="closed"):
        run(handle.step("b"))


def test_nobody_loses_patience_where_nobody_waits():
    assert pool_of(neighbours=1).patience_s is None and pool_of(neighbours=2).patience_s == 2.0
    slow = pool_of(asynchronous=AsyncOptions(open_s=50.0, close_s=5.0, retries=3))
    assert slow.patience_s is None and slow.retries == 3 and pool_of().retries == 0
    assert [slow.limit_of(method) for method in ("open", "close", "step", "fork")] == [50.0, 5.0, 8.0, 8.0]
    assert [pool_of().limit_of(method) for method in ("open", "close")] == [8.0, 8.0]
    with pytest.raises(RecipeError, match="at least one process, got 0"):
        EnvironmentPool(FACTORY, processes=0)
    assert len(EnvironmentPool(FACTORY, processes=1)._processes) == 1


def test_a_process_is_not_killed_while_its_environments_may_still_close():
    (process,) = EnvironmentPool(FACTORY, processes=1, asynchronous=AsyncOptions(close_s=7.0))._processes
    assert process.stop_limit_s > 7.0


def test_a_spec_says_how_its_pool_is():
    spec = EnvironmentSpec("x", EnvironmentPool, fork="replay", neighbours=3, normalise=str.lower)
    made = EnvironmentPool.of(spec, None, 2, 5.0)
    assert (made.forks, made.normalise, made.asynchronous, len(made._processes)) == ("replay", str.lower, None, 2)
    assert made.time_limit_s == 5.0 and made._neighbours == 3 and made.patience_s == 1.25
    asynchronous = EnvironmentSpec("x", EnvironmentPool, asynchronous=True)
    assert EnvironmentPool.of(asynchronous, None).asynchronous == AsyncOptions()
    given = AsyncOptions(retries=9)
    assert EnvironmentPool.of(asynchronous, None, asynchronous=given).retries == 9
    inside = EnvironmentSpec("x", EnvironmentPool, asynchronous=True, in_worker=True)
    with pytest.raises(RecipeError, match="runs in the rollout worker alone"):
        EnvironmentPool.of(inside, None)
    alone = EnvironmentPool.of(inside, None, 4, tools=SimpleNamespace())
    assert len(alone._processes) == 1 and type(alone._processes[0]).__name__ == "InWorker"


def test_processes_are_of_the_kind_of_their_world():
    plain = EnvironmentPool(FACTORY, options=3, time_limit_s=8.0, start_limit_s=9.0)
    (path, _, packages, _), start_limit_s, _ = plain._make.args
    assert plain._make.func.__name__ == "Process" and path == FACTORY and start_limit_s == 9.0
    assert packages == {"tests", "builtins"}, "what has to be importable in it"
    options = AsyncOptions()
    several = EnvironmentPool(FACTORY, time_limit_s=8.0, asynchronous=options)
    assert several._make.func.__name__ == "AsyncProcess" and several._make.args[:2] == (options, 2.0)
    inside = EnvironmentPool(FACTORY, asynchronous=options, tools=SimpleNamespace())
    assert inside._make.func.__name__ == "InWorker" and inside._make.args[1] == options.close_s
    assert EnvironmentPool(FACTORY, tools=SimpleNamespace())._make.func.__name__ == "Process"


def test_all_processes_are_started_killed_and_stopped():
    fakes = [Fake(), Fake()]
    pool = pool_of(*fakes)

    async def main():
        await pool.start()
        await pool.kill_processes()
        await pool.close()

    run(main())
    assert [(fake.life, fake.ended) for fake in fakes] == [(0, ["kill", "stop"])] * 2


# Where an episode is played


def test_episodes_go_where_there_are_fewest_and_nobody_hangs():
    one, two, three = Fake(), Fake(), Fake()
    pool = pool_of(one, two)
    one.load, two.load = 2, 1
    assert pool.place() is two
    two.busy_s = 1.99
    assert pool.place() is two
    two.busy_s = 2.0
    assert pool.place() is one
    pool = pool_of(one, two, made=[three], processes=2)
    assert pool.place() is three and pool._processes == [one, two, three], "one seems to hang, two are wanted"
    assert pool.place() is three


def test_further_processes_are_made_while_there_is_room(monkeypatch):
    one, two = Fake(), Fake()
    pool = pool_of(one, made=[two], neighbours=2)
    one.load = 1
    assert pool.place() is one
    one.load = 2
    assert pool.place() is two and pool._processes == [one, two]
    two.load = 3
    monkeypatch.setattr(pools, "MOST_PROCESSES", 2)
    assert pool.place() is one, "no further one is made"
    monkeypatch.setattr(pools, "MOST_PROCESSES", 3)
    with pytest.raises(StopIteration):
        pool.place()
    one.busy_s = two.busy_s = 99.0
    monkeypatch.setattr(pools, "MOST_PROCESSES", 0)
    assert pool.place() is one
    two.busy_s = 0.0
    assert pool.place() is two, "the other one seems to hang"


def test_who_waits_behind_a_hang_goes_on_elsewhere():
    hangs, other = Fake({"text": "0"}, {"text": "1"}, Stuck()), Fake([{"text": "0"}, {"text": "1"}], {"text": "2"})
    pool = pool_of(hangs)
    handle = run(opened(pool, "a"))
    pool._processes.append(other)

    async def main():
        step = await handle.step("b")
        await asyncio.sleep(0)
        return step

    hangs.load = 5
    assert run(main()).text == "2" and pool.counts["left"] == 1 and pool.counts["replays"] == 1
    assert hangs.dropped == [(0, 0)] and (hangs.load, other.load) == (4, 1)
    assert other.asked[0] == ("replay", 1, (TASK, 7, ("a",)), 16.0, 0, 2.0) and other.methods == ["replay", "step"]
    assert handle.actions == ("a", "b") and not pool._drops


def test_an_episode_that_has_another_life_leaves_nothing_behind():
    hangs, other = Fake(Stuck()), Fake({"text": "0"})
    pool = pool_of(hangs)

    async def main():
        handle = pools.Handle(pool, hangs, 0, TASK, 7)
        pool._processes = [other]
        hangs.life = 0
        handle._life = -1
        said = await handle._call("open", TASK, 7)
        await asyncio.sleep(0)
        return said

    assert run(main()) == {"text": "0"} and hangs.dropped == [] and other.methods == ["open"]


# Forks and replays


def test_a_fork_is_made_by_its_world_or_else_by_a_replay():
    fake = Fake({"text": "0"}, {"text": "1"}, True)
    pool = pool_of(fake)
    handle = run(opened(pool, "a"))
    copy = run(handle.fork())
    assert fake.asked[-1] == ("fork", 0, (1,), 8.0, 0, 2.0) and (copy.steps, copy.actions) == (handle.steps, ("a",))
    assert pool.counts["forks"] == 1 and pool.counts["replays"] == 0 and fake.load == 2
    run(copy.step("b"))
    assert fake.asked[-1][:3] == ("step", 1, ("b",)) and handle.actions == ("a",)
    fake.script, other = [False], Fake([{"text": "0"}, {"text": "1"}])
    pool._processes.append(other)
    third = run(handle.fork())
    assert (
        other.asked == [("replay", 2, (TASK, 7, ("a",)), 16.0, 0, 2.0)]
        and other.load == 1
        and third.steps == handle.steps
    )
    fake.script = [Raised("no")]
    lost(handle.fork(), "raised", "fork raised no")
    assert fake.load == 2 and pool.counts["raised"] == 1


def test_a_recorded_world_is_copied_without_a_call():
    fake = Fake({"text": "0"})
    pool = pool_of(fake, fork="recorded")
    handle = run(opened(pool))
    copy = run(handle.fork())
    assert fake.methods == ["open"] and copy.steps == handle.steps and pool.counts["forks"] == 1
    fake.script = [[{"text": "0"}], {"text": "1"}]
    assert run(copy.step("a")).text == "1" and fake.methods == ["open", "replay", "step"]
    fake.script = [TookTooLong("killed")]
    lost(handle.step("a"), "timeout")
    lost(handle.fork(), "timeout")
    again = run(pool.resume(TASK, 7, ["a"], list(copy.steps)))
    assert again.actions == ("a",) and again.steps == copy.steps and fake.methods[-1] == "step"


def replayed(said, steps=("0", "1", "2"), **given):
    fake = Fake(said)
    pool = pool_of(fake, **given)

    async def main():
        answers = [StepResult(text, anchor=text.upper()) for text in steps]
        handle = await pool.resume(TASK, 7, ["a", "b"][: len(steps) - 1], answers)
        await handle.replay()
        return handle

    return pool, fake, main


def said(*texts, **more):
    return [{"text": text, "anchor": text.upper(), **more} for text in texts]


def test_a_replay_has_the_same_answers():
    _, fake, play = replayed(said("0", "1", "2"))
    run(play())
    assert fake.asked == [("replay", 0, (TASK, 7, ("a", "b")), 24.0, 0, 2.0)]
    for wrong, where in (
        (said("x", "1", "2"), "after reset the environment answered '0' and in the replay 'x'"),
        (said("0", "1", "x"), "after action 2 ('b') the environment answered '2' and in the replay 'x'"),
        (said("0", "x", "y"), "after action 1 ('a')"),
        (said("0", "1", "2", done=True), "after reset"),
        (said("0", "1", "2", valid=False), "after reset"),
        ([{"text": "0", "anchor": "o"}, *said("1", "2")], "after reset"),
    ):
        pool, fake, play = replayed(wrong)
        lost(play(), "replay_mismatch", where)
        assert fake.dropped == [(0, None)] and pool.counts["replay_mismatch"] == 1 == pool.counts["replays"]


@pytest.mark.parametrize("wrong", [[], said("0", "1"), said("0", "1", "2", "3"), {"text": "0"}, 3, "012"])
def test_a_replay_has_an_answer_for_each_action(wrong):
    """What a process says is the word of a stranger."""
    pool, _, play = replayed(wrong)
    lost(play(), "raised", "replay was answered with something else than 3 steps")
    assert pool.counts["raised"] == 1


def test_what_differs_between_sessions_is_not_compared():
    for normalise, kind in (
        (str.lower, ""),
        (lambda text: "x", ""),
        (None, "replay_mismatch"),
        (str.strip, "replay_mismatch"),
    ):
        pool, _, play = replayed([{"text": "A", "anchor": "a"}], ("a",), normalise=normalise)
        if kind:
            lost(play(), kind)
        else:
            run(play())
            assert pool.counts["replay_mismatch"] == 0


@pytest.mark.parametrize("forked", [False, True])
def test_a_recovery_that_is_refused_costs_the_episode_alone(forked):
    """The recipe has worked before: what was opened, or copied, is made again."""
    fake = Fake({"text": "0"})
    handle = run(opened(pool_of(fake)))
    handle = run(handle.fork()) if forked else handle
    fake.life, fake.script = -1, [Refused("gone")]
    lost(handle.step("a"), "raised", "replay raised gone")


def test_what_is_copied_is_made_again_first_where_its_process_has_died():
    fake = Fake({"text": "0"})
    handle = run(opened(pool_of(fake)))
    fake.life, fake.script = -1, [[{"text": "0"}], True]
    run(handle.fork())
    assert fake.methods == ["open", "replay", "fork"]


def test_anchors_are_compared_where_there_are_any():
    _, _, play = replayed([{"text": "A", "anchor": "b"}], ("a",), normalise=str.lower)
    lost(play(), "replay_mismatch")
    fake = Fake([{"text": "A"}])
    run(run(pool_of(fake, normalise=str.lower).resume(TASK, 7, [], [StepResult("a")])).replay())
    assert fake.methods == ["replay"]


def test_a_fork_that_cannot_be_made_is_the_recipes_matter():
    fake = Fake({"text": "0"}, False)
    pool = pool_of(fake)
    handle = run(opened(pool))
    pool._processes = [Fake(Refused("no copy"))]
    with pytest.raises(RecipeError, match="no copy"):
        run(handle.fork())


def test_an_asynchronous_world_is_given_its_history_and_may_ask_nobody():
    _, fake, play = replayed(None, ("0", "1"), asynchronous=AsyncOptions(open_s=3.0))
    fake.call = record = Recorded(None)
    handle = run(play())
    method, _, arguments, limit, *_ = record.asked
    assert method == "replay" and limit == 3.0 + 8.0 and handle._rebuilds
    assert arguments == (TASK, 7, ("a",), [{"text": "0", "anchor": "0"}, {"text": "1", "anchor": "1"}])


class Recorded:
    def __init__(self, said):
        self.said, self.asked = said, ()

    async def __call__(self, *asked):
        self.asked = asked
        return self.said


# What costs an episode, and what does not


@pytest.mark.parametrize(
    ("error", "kind", "count", "words"),
    [
        (
            TookTooLong("its process was killed"),
            "timeout",
            "timeouts",
            "step took longer than 8 s; its process was killed",
        ),
        (Raised("Oops"), "raised", "raised", "step raised Oops"),
        (Died("exit 3", during_call=True), "killed", "killed", "the process died during step (exit 3)"),
        (Unavailable("busy"), "unavailable", "unavailable", "step was not taken: busy"),
        (WrongServer("html"), "raised", "raised", "step raised html"),
    ],
)
def test_an_error_costs_its_episode_and_stays(error, kind, count, words):
    fake = Fake({"text": "0"}, {"text": "1"}, error)
    pool = pool_of(fake)
    handle = run(opened(pool, "a"))
    failure = lost(handle.step("b"), kind, words)
    assert str(failure) == (words if kind == "raised" else f"{kind}: {failure.message}")
    asked = len(fake.asked)
    assert lost(handle.step("b"), kind) is failure and lost(handle.fork(), kind) is failure and len(fake.asked) == asked
    assert pool.counts[count] == 1 and fake.dropped == ([(0, None)] if kind == "unavailable" else [])
    run(handle.close())
    assert len(fake.asked) == asked and fake.load == 0


def test_what_is_no_step_costs_its_episode():
    for answer in ({"text": 3}, {"text": "x", "reward": float("nan")}, [], 7):
        lost(opened(pool_of(Fake(answer))), "raised", "open was answered with no step")
    lost(opened(pool_of(Fake({"text": "0"}, {})), "a"), "raised", "step was answered with no step")


@pytest.mark.parametrize("error", [Refused("no file"), WrongServer("html")])
def test_a_refusal_before_the_recipe_has_worked_is_the_recipes(error):
    fake = Fake(error)
    pool = pool_of(fake)
    with pytest.raises(RecipeError, match=str(error)):
        run(opened(pool))
    assert fake.load == 0 and pool.counts["raised"] == 0
    pool = pool_of(Fake({"text": "0"}, error))
    with pytest.raises(RecipeError, match=str(error)):
        run(opened(pool, "a"))


def test_a_refusal_after_it_has_worked_is_the_episodes_where_a_server_says_it():
    pool = pool_of(Fake({"text": "0"}, WrongServer("html")))
    run(opened(pool))
    lost(opened(pool), "raised", "open raised html")
    pool = pool_of(Fake({"text": "0"}, {"text": "1"}, Refused("no")))
    with pytest.raises(RecipeError, match="no"):
        run(opened(pool, "a", "b"))
    for rebuilds, kind in ((True, "raised"), (False, "")):
        fake = Fake(Refused("no"))
        pool = pool_of(fake)
        handle = run(pool.resume(TASK, 7, [], [StepResult("0")]))
        handle._rebuilds = rebuilds
        if kind:
            lost(handle.step("a"), kind, "replay raised no")
        else:
            with pytest.raises(RecipeError, match="no"):
                run(handle.step("a"))


def test_a_call_that_is_not_taken_is_made_again_after_pauses_that_double(monkeypatch):
    slept = []

    async def sleep(seconds):
        slept.append(seconds)

    monkeypatch.setattr(pools.asyncio, "sleep", sleep)
    busy = [Unavailable("busy")] * 3
    options = AsyncOptions(retries=3)
    pool = pool_of(Fake({"text": "0"}, *busy, {"text": "1"}), asynchronous=options)
    assert run(opened(pool, "a")).actions == ("a",)
    assert slept == [0.1875, 0.375, 0.75] and pool.counts["retries"] == 3 and pool.counts["unavailable"] == 0
    slept.clear()
    pool = pool_of(Fake({"text": "0"}, *busy, Unavailable("busy")), asynchronous=options)
    lost(opened(pool, "a"), "unavailable")
    assert slept == [0.1875, 0.375, 0.75] and pool.counts["calls"] == 2


def test_a_lost_session_is_restored_once_in_a_call():
    gone, whole = SessionLost("gone"), [{"text": "0"}]
    fake = Fake({"text": "0"}, gone, whole, {"text": "1"})
    pool = pool_of(fake)
    assert run(opened(pool, "a")).actions == ("a",) and fake.methods == ["open", "step", "replay", "step"]
    fake = Fake({"text": "0"}, gone, whole, gone)
    lost(opened(pool_of(fake), "a"), "session_lost", "during step: gone")
    lost(opened(pool_of(Fake(gone))), "session_lost", "during open: gone")
    pool, _, play = replayed(gone)
    lost(play(), "session_lost", "during replay")


def test_a_process_that_died_before_a_call_costs_nobody():
    fake = Fake({"text": "0"}, Died("gone", during_call=False), [{"text": "0"}], {"text": "1"})
    pool = pool_of(fake)
    assert run(opened(pool, "a")).actions == ("a",) and fake.methods == ["open", "step", "replay", "step"]
    fake = Fake(Died("gone", during_call=False), {"text": "0"})
    run(opened(pool_of(fake)))
    assert fake.methods == ["open", "open"]


def test_another_life_is_rebuilt_before_the_next_call():
    fake = Fake({"text": "0"})
    handle = run(opened(pool_of(fake)))
    fake.life = -1
    fake.script = [[{"text": "0"}], {"text": "1"}]
    assert run(handle.step("a")).text == "1" and fake.methods == ["open", "replay", "step"] and fake.asked[-1][4] == 1
    fake.life = -1
    run(handle.close())
    assert fake.methods[-1] == "step", "there is nothing to close in it"


@pytest.mark.parametrize("method", ["step", "replay"])
def test_a_cancelled_call_makes_the_next_one_rebuild(method):
    fake = Fake({"text": "0"}, asyncio.CancelledError())
    handle = run(opened(pool_of(fake)))
    with pytest.raises(asyncio.CancelledError):
        run(handle.step("a") if method == "step" else handle.replay())
    assert handle._life == -1
    fake.script = [[{"text": "0"}], {"text": "1"}]
    assert run(handle.step("a")).text == "1" and fake.methods[-2:] == ["replay", "step"]


def test_who_gives_up_waiting_for_a_slot_has_sent_nothing():
    pool = pool_of(Fake({"text": "0"}), asynchronous=AsyncOptions(calls_in_flight=1))

    async def main():
        handle = await opened(pool)
        async with pool.slots:
            waits = asyncio.ensure_future(handle.step("a"))
            await asyncio.sleep(0)
            waits.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waits
        return handle

    assert run(main())._life == 0


def test_what_was_never_made_is_not_closed():
    fake = Fake()
    fake.life = fake.lives = 1
    handle = run(pool_of(fake).resume(TASK, 7, [], [StepResult("0")]))
    assert fake.load == 1
    run(handle.close())
    assert fake.asked == [] and fake.load == 0


def test_errors_while_closing_cost_nothing():
    for error in (TookTooLong("x"), Died("x", during_call=True), Raised("x"), Refused("x")):
        fake = Fake({"text": "0"}, error)
        handle = run(opened(pool_of(fake)))
        run(handle.close())
        assert fake.load == 0 and fake.methods == ["open", "close"]


def test_starts_after_the_first_are_counted():
    pool = pool_of()
    pool._restarted()
    pool._restarted()
    assert pool.counts["restarts"] == 2


# Slots


def test_slots_count_who_is_in_and_how_long_others_wait(monkeypatch):
    clock = iter([10.0, 11.0])
    monkeypatch.setattr("verl_hier.environments.slots.time", SimpleNamespace(monotonic=lambda: next(clock)))
    counts = {"most_in_flight": 0, "waited_ms": 0}

    async def main():
        slots, order = Slots(2, counts), []

        async def user(name, leave):
            async with slots:
                order.append(name)
                await leave.wait()

        leave = asyncio.Event()
        users = [asyncio.ensure_future(user(name, leave)) for name in "abc"]
        for _ in range(5):
            await asyncio.sleep(0)
        assert order == ["a", "b"] and counts == {"most_in_flight": 2, "waited_ms": 0}
        leave.set()
        await asyncio.gather(*users)
        assert order == ["a", "b", "c"] and counts == {"most_in_flight": 2, "waited_ms": 1000}
        counts["most_in_flight"] = 0
        async with slots:
            assert counts["most_in_flight"] == 1

    run(main())


def test_the_process_is_told_how_long_to_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = socket.socketpair()
    told: list[Any] = []

    async def serve(connection: socket.socket, **limits: float) -> None:
        told.append((connection.fileno(), limits))

    monkeypatch.setattr(async_child, "serve", serve)
    monkeypatch.setattr(async_child, "end_with", told.append)
    monkeypatch.setattr(sys, "argv", ["", str(theirs.fileno()), "7", "1.5", "2.5"])
    monkeypatch.setattr(async_child.MASK, "cover_output", lambda: None)
    number = theirs.detach()
    async_child.main()
    assert told == [7, (number, {"close_s": 1.5, "blocked_s": 2.5})]
    ours.close()


@pytest.mark.parametrize("number", [7, 0])
def test_the_call_that_blocks_a_child_is_reported_before_it_ends(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """0 where what blocks it is no call."""
    reported: list[int] = []
    ended = threading.Event()

    async def block() -> None:
        assert ended.wait(20)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        async_child.watch(loop, 0.05, reported.append)
        if number:
            await asyncio.create_task(block(), name=str(number))
        else:
            loop.call_soon(ended.wait, 20)
            await asyncio.sleep(0)

    monkeypatch.setattr(async_child, "BEAT_S", 0.01)
    monkeypatch.setattr(os, "_exit", lambda status: ended.set())
    asyncio.run(main())
    assert ended.is_set() and reported[0] == number


@pytest.mark.parametrize(("place", "other"), [(0, "3"), (1, 8), (2, 5), (2, None)])
def test_a_reply_of_another_form_is_none(monkeypatch: pytest.MonkeyPatch, place: int, other: Any) -> None:
    monkeypatch.setattr(Process, "pid", 7)
    process = Process(("", b"", set(), ProcessOptions()), 1.0, lambda: None)
    message = [3, 7, "done", {"said": True}]
    assert process._message(pack(message)[HEADER.size :]) == (3, "done", {"said": True})
    message[place] = other
    with pytest.raises(Garbled, match="another call or process"):
        process._message(pack(message)[HEADER.size :])


def test_worlds_in_the_worker_itself_are_closed_when_they_are_ended() -> None:
    ended: list[str] = []

    class World:
        def __init__(self) -> None:
            self.name = ""

        async def reset(self, task: Any, seed: int) -> StepResult:
            self.name = task["name"]
            try:
                await asyncio.sleep(0 if self.name == "ready" else 60)
            except asyncio.CancelledError:
                ended.append(f"{self.name} is cancelled")
                raise
            return StepResult("begun")

        async def close(self) -> None:
            ended.append(f"{self.name} is closed")

    async def end() -> None:
        worker = InWorker(World, 1.0, lambda: None)  # type: ignore[arg-type]
        await worker.alive()
        await worker.call("open", 1, ({"name": "ready"}, 0), limit_s=60.0)
        opening = asyncio.create_task(worker.call("open", 2, ({"name": "slow"}, 0), limit_s=60.0))
        await asyncio.sleep(0.01)
        await worker.stop()
        await asyncio.wait([opening], timeout=20)
        assert isinstance(opening.exception(), Died)

    asyncio.run(end())
    assert {"ready is closed", "slow is cancelled"} <= {*ended}


def test_a_call_of_a_process_that_was_not_started_is_not_to_blame() -> None:
    process = Process(("", b"", set(), ProcessOptions()), 1.0, lambda: None)
    with pytest.raises(Died, match="between two calls") as error:
        asyncio.run(process.call("step", 1, ("go",), limit_s=1.0))
    assert not error.value.during_call


def test_a_call_in_the_worker_itself_is_told_that_its_world_was_ended() -> None:
    class Silent:
        async def reset(self, task: Any, seed: int) -> None:
            await asyncio.Event().wait()

        async def close(self) -> None:
            """Nothing to close."""

    async def ended() -> None:
        worker = InWorker(Silent, 1.0, lambda: None)  # type: ignore[arg-type]
        await worker.alive()
        call = asyncio.create_task(worker.call("open", 1, (TASK, 0), limit_s=60.0))
        await asyncio.sleep(0)
        await worker.kill()
        await asyncio.wait_for(call, 20)

    with pytest.raises(Died, match="it was ended") as error:
        asyncio.run(ended())
    assert error.value.during_call


@pytest.mark.parametrize(
    ("method", "arguments", "gone"), [("step", ("go",), [1]), ("fork", (2,), [1, 2]), ("close", (), ())]
)
def test_a_cancelled_call_in_the_worker_itself_ends_what_it_had_in_hand(
    method: str, arguments: tuple[Any, ...], gone: Any
) -> None:
    """A copy that is half made goes with its source; a world that is being closed is left alone."""
    cancelled: list[Any] = []

    async def cancel() -> None:
        worker = InWorker(lambda: None, 1.0, lambda: None)  # type: ignore[arg-type, return-value]
        calls = SimpleNamespace(begin=lambda *call: None, cancel=lambda call, numbers: cancelled.append(numbers))
        worker._running = calls  # type: ignore[assignment]
        call = asyncio.create_task(worker.call(method, 1, arguments, limit_s=60.0))
        await asyncio.sleep(0)
        call.cancel()
        await asyncio.wait([call])

    asyncio.run(cancel())
    assert cancelled == [gone]


@pytest.mark.parametrize("can_fork", [True, False])
def test_a_world_behind_the_synchronous_interface_is_copied_where_it_can_be(can_fork: bool, tmp_path: Path) -> None:
    spec = EnvironmentSpec(
        **{"name": "faulty", "factory": faulty_async_environment.service, "asynchronous": True},
        options=faulty_async_environment.Options,
    )
    world = blocking.build(spec, faulty_async_environment.Options(str(tmp_path / "log"), can_fork=can_fork))
    first = world.reset(TASK, 0)
    copy = world.fork()
    assert (copy is not None) == can_fork
    if copy is not None:
        assert copy.step("1").text == world.step("1").text != first.text
        copy.close()
    world.close()


def process_of_sessions(sent: list[Any]) -> tuple[AsyncProcess, Life]:
    """One whose child is there, takes every call and says nothing."""
    process = AsyncProcess(AsyncOptions(), 1.0, ("", b"", set(), ProcessOptions()), 1.0, lambda: None)
    frames = SimpleNamespace(lost=asyncio.get_running_loop().create_future(), send=sent.append)
    process._present = life = Life(frames, {})  # type: ignore[arg-type]
    return process, life


@pytest.mark.parametrize("there", [True, False])
def test_a_call_of_a_child_that_has_gone_is_not_sent(there: bool) -> None:
    sent: list[Any] = []

    async def called() -> None:
        process, life = process_of_sessions(sent)
        if there:
            life.frames.lost.set_result("")
        else:
            process._present = None
        await process.call("step", 1, ("go",), limit_s=1.0)

    with pytest.raises(Died, match="between two calls") as error:
        asyncio.run(called())
    assert not error.value.during_call and not sent


def test_a_silent_child_is_killed_when_the_limit_and_a_moment_have_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(async_process, "GLANCE_S", 0.01)
    monkeypatch.setattr(async_process, "GRACE_S", 0.05)
    killed: list[int] = []

    async def watched() -> None:
        process, life = process_of_sessions([])
        process._child = SimpleNamespace(kill=lambda: killed.append(process._glances))  # type: ignore[assignment]
        watching = asyncio.create_task(process._watch(life))
        call = asyncio.create_task(process.call("step", 1, ("go",), limit_s=0.05))
        while not killed:
            await asyncio.sleep(0.005)
        watching.cancel()
        call.cancel()

    asyncio.run(watched())
    assert killed[0] == 11  # glances: ten of them are the limit


@pytest.mark.parametrize(("lost", "words"), [("", "exit status 3"), ("a reply of 9 GB", "a reply of 9 GB")])
def test_calls_are_told_what_their_process_died_of(monkeypatch: pytest.MonkeyPatch, lost: str, words: str) -> None:
    async def discard() -> int:
        return 3

    async def ended() -> BaseException | None:
        process, life = process_of_sessions([])
        monkeypatch.setattr(process, "_discard", discard)
        answer = asyncio.get_running_loop().create_future()
        life.in_flight[1] = answer, 99.0
        life.frames.lost.set_result(lost)
        await process._end(life)
        return answer.exception()

    error = asyncio.run(ended())
    assert isinstance(error, Died) and error.during_call and str(error) == words
