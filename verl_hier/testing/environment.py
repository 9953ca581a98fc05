"""Conformance check of an environment: plays it and checks what the trainer relies on. Call it from your own tests:

check_environment(SPEC, options)
"""

from __future__ import annotations

import asyncio
import gc
import pickle
import random
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import psutil

from verl_hier.environments.base import Environment, StepResult
from verl_hier.environments.blocking import build
from verl_hier.environments.expert import OffersExpert
from verl_hier.environments.pool import EnvironmentFailure, EnvironmentPool
from verl_hier.environments.wire import from_step
from verl_hier.errors import HierError
from verl_hier.host.specs import EnvironmentSpec
from verl_hier.testing.environment_spec import WonInAnswers, check_declared, check_splits, tasks_to_play
from verl_hier.testing.hostile import HOSTILE
from verl_hier.testing.scene import changing_generators

NONSENSE = "xyzzy no such action"
Record = tuple[str, float, bool, bool, bool, tuple[str, ...], str | None]
"""The compared fields of a `StepResult`, see `_record`."""


def check_environment(
    spec: EnvironmentSpec,
    options: Any = None,
    tasks: int = 3,
    steps: int = 12,
    seed: int = 0,
    split: str = "train",
    isolated: bool = True,
    actions: Sequence[str] = (),
    any_text: bool = False,
) -> None:
    """Play an environment and fail with a sentence where it breaks its contract.

    Checked: tasks are JSON-able; the splits share none; what the spec declares is true; equal task, seed and actions
    give equal steps, also while other instances run in the same process and draw from its global random generators; a
    nonsensical action is answered with `valid=False` and changes nothing; no text that a policy may write (cut, nested,
    of any script, with escapes of what is no character) raises an exception; equal anchors come with equal admissible
    actions; a fork is equal to its source, independent of it, and outlives it; closing leaves no thread, process or
    open file behind; the process pool gives the same steps, also by replay after a crash, and a call that exceeds its
    time limit loses its own episode only; `won` is said as the spec declares it, and where it declares nothing in all
    answers or in none.

    An environment that lists no admissible actions is played with `actions`, else by its expert, else with nonsense.

    Args:
        spec: the registered environment.
        options: its options; the defaults when None.
        tasks: number of tasks to play.
        steps: number of actions in each.
        seed: seed of the episodes and of the random actions.
        split: split whose tasks are played.
        isolated: whether to check behind the process pool, too; the factory must then be importable by name.
        actions: actions to try where the environment lists none.
        any_text: whether every text is an action, as what one says to a partner in a conversation is; nonsense then
            need not be refused.

    Raises:
        AssertionError: with a sentence about what is wrong.
    """
    options = spec.options() if options is None else options
    played_tasks = tasks_to_play(spec, options, split, tasks)
    check_splits(spec, options)
    won = WonInAnswers(spec)
    for number, task in enumerate(played_tasks):
        player = _Player(spec, options, task, seed, random.Random(f"{seed}-{number}"), tuple(actions), won)
        played = player.play(steps)
        player.check_determinism(played)
        player.check_neighbours(played)
        if not any_text:
            player.check_nonsense(played)
        if not number:
            player.check_hostile()
        player.check_fork(played)
        player.close()
        player.check_close(played)
        if isolated:
            asyncio.run(_check_pool(spec, options, task, seed, played, player.history(played)))
            player.close()
    won.check()
    check_declared(spec, options, split, seed)


class _Player:
    """Plays one task in this process."""

    def __init__(
        self,
        spec: EnvironmentSpec,
        options: Any,
        task: Mapping[str, Any],
        seed: int,
        rng: random.Random,
        actions: tuple[str, ...],
        won: WonInAnswers,
    ) -> None:
        self._spec, self._options, self._task, self._seed, self._rng = spec, options, task, seed, rng
        self._actions = actions
        self._won = won
        self._made: list[Environment] = []

    def play(self, steps: int) -> list[str]:
        """Play random actions; equal anchors must come with equal admissible actions."""
        environment, step = self._start()
        seen: dict[str, tuple[str, ...]] = {}
        actions: list[str] = []
        while len(actions) < steps and not (step.done or step.truncated):
            if step.anchor is not None:
                known = seen.setdefault(step.anchor, step.admissible)
                assert known == step.admissible, (
                    f"{self._where()}: two states have the anchor {step.anchor!r} but other admissible actions"
                )
            action, listed = self._choose(environment, step), step.admissible
            step = self._step(environment, action)
            if step.valid is False and action in listed:
                raise AssertionError(f"{self._where()}: {action!r} was listed as admissible and then called invalid")
            actions.append(action)
        return actions

    def check_determinism(self, actions: list[str]) -> None:
        """Two instances with the same history, and one that is reset again, give equal steps."""
        first, second = self.history(actions), self.history(actions)
        _same(first, second, f"{self._where()}: not deterministic for the same task, seed and actions")
        environment, _ = self._start()
        for action in actions:
            environment.step(action)
        again = [
            _record(environment.reset(self._task, self._seed)),
            *(_record(environment.step(action)) for action in actions),
        ]
        _same(first, again, f"{self._where()}: a second reset does not start from the beginning")

    def check_neighbours(self, actions: list[str]) -> None:
        """Neither another instance in this process nor the global random generators change anything."""
        expected = self.history(actions)
        with changing_generators() as disturb:
            (environment, step), (other, beside) = self._start(), self._start()
            got = [_record(step)]
            for action in actions:
                disturb()
                if not (beside.done or beside.truncated):
                    beside = other.step(self._choose(other, beside))
                disturb()
                got.append(_record(self._step(environment, action)))
        sentence = (
            "not deterministic while other instances run in its process; give each a random generator of its own "
            "instead of the global one, and share nothing that changes"
        )
        _same(expected, got, f"{self._where()}: {sentence}")

    def check_nonsense(self, actions: list[str]) -> None:
        """A nonsensical action is answered and changes nothing."""
        environment, step = self._start()
        for action in actions[: len(actions) // 2]:
            step = environment.step(action)
        if step.done or step.truncated:
            return
        try:
            answer = self._step(environment, NONSENSE)
        except Exception as error:
            raise AssertionError(
                f"{self._where()}: a nonsensical action raised {type(error).__name__}: {error}; "
                "answer it with valid=False"
            ) from error
        assert not answer.valid, f"{self._where()}: {NONSENSE!r} was called valid"
        assert answer.anchor == step.anchor, f"{self._where()}: an invalid action changed the state (anchor)"
        assert answer.admissible == step.admissible, f"{self._where()}: an invalid action changed what is admissible"

    def check_hostile(self) -> None:
        """No text of a policy raises an exception, and each is answered with a step as the pool takes it."""
        environment, step = self._start()
        for what, text in HOSTILE.items():
            if step.done or step.truncated:
                environment, step = self._start()
            try:
                step = environment.step(text)
                from_step(step)
            except Exception as error:
                raise AssertionError(
                    f"{self._where()}: an action of {what} raised {type(error).__name__}: {error}; answer it with "
                    "valid=False, because a policy could lose an episode at will"
                ) from error

    def check_fork(self, actions: list[str]) -> None:
        """A fork answers as its source would have, neither affects the other, and the fork outlives its source."""
        half = len(actions) // 2
        expected = self.history(actions)[half + 1 :]
        environment, step = self._walk(actions[:half])
        copy = environment.fork()
        if copy is None:
            return
        self._made.append(copy)
        assert self._spec.fork != "never", f"{self._spec.name}: it forks, but its spec says fork='never'"
        # Step the source elsewhere first: a fork that shares its state would follow.
        environment.step(step.admissible[-1] if step.admissible else self._choose(environment, step))
        broken = f"{self._where()}: a fork differs from its source or is not independent of it"
        _same(expected, [_record(copy.step(action)) for action in actions[half:]], broken, half + 1)
        # The reverse: the source is not affected by what the fork did.
        environment, _ = self._walk(actions[:half])
        self._play_and_close(environment.fork(), actions[half:])
        disturbed = f"{self._where()}: a fork that was played and closed disturbed its source"
        _same(expected, [_record(environment.step(action)) for action in actions[half:]], disturbed, half + 1)
        # A sampler prunes episodes whose forks go on.
        environment, _ = self._walk(actions[:half])
        copy = environment.fork()
        assert copy is not None, f"{self._where()}: it forked once and then no more"
        self._made.append(copy)
        self._play_and_close(environment, [])
        orphan = f"{self._where()}: a fork does not outlive its source"
        _same(expected, [_record(copy.step(action)) for action in actions[half:]], orphan, half + 1)

    def check_close(self, actions: list[str]) -> None:
        """Closing releases threads, child processes and open files."""
        # The first round loads what stays: modules, caches, shared libraries.
        self._open_and_close(actions)
        for attempt in reversed(range(3)):
            before = _resources()
            for _ in range(3):
                self._open_and_close(actions)
            left = {what: count - before[what] for what, count in _resources().items() if count > before[what]}
            if not left:
                return
            # Something else in this process may have opened one, but not three times in a row.
            assert attempt, f"{self._where()}: three instances were closed and left behind: {left}"

    def close(self) -> None:
        """Every instance must close without an exception."""
        while self._made:
            self._made.pop().close()

    def history(self, actions: list[str]) -> list[Record]:
        """The steps of a new instance."""
        environment, step = self._start()
        return [_record(step), *(_record(self._step(environment, action)) for action in actions)]

    def _choose(self, environment: Environment, step: StepResult) -> str:
        """A random action, an admissible one where those are known."""
        if step.admissible or self._actions:
            return self._rng.choice(step.admissible or self._actions)
        return self._advice(environment) or NONSENSE

    def _advice(self, environment: Environment) -> str | None:
        """The next action of the expert, or half the time a mistake; None without an expert for the task."""
        if not isinstance(environment, OffersExpert):
            return None
        try:
            expert = environment.expert(random.Random(self._seed))
        except HierError:
            return None
        for number in range(len(expert.subgoals)):
            action = expert.advise(number)
            if action is not None:
                mistake = expert.mistake(number, self._rng) if self._rng.random() < 0.5 else None
                return mistake or action
        return None

    def _walk(self, actions: list[str]) -> tuple[Environment, StepResult]:
        environment, step = self._start()
        for action in actions:
            step = environment.step(action)
        return environment, step

    def _play_and_close(self, environment: Environment | None, actions: list[str]) -> None:
        assert environment is not None, f"{self._where()}: it forked once and then no more"
        for action in actions:
            environment.step(action)
        environment.close()
        self._made = [made for made in self._made if made is not environment]

    def _open_and_close(self, actions: list[str]) -> None:
        environment, _ = self._walk(actions)
        copy = environment.fork()
        if copy is not None:
            copy.close()
        self._play_and_close(environment, [])
        gc.collect()

    def _start(self) -> tuple[Environment, StepResult]:
        environment = build(self._spec, self._options)
        assert isinstance(environment, Environment), (
            f"{self._spec.name}: the factory gave no Environment but a {type(environment).__name__}"
        )
        self._made.append(environment)
        step = environment.reset(self._task, self._seed)
        return environment, self._checked(step, "a reset")

    def _step(self, environment: Environment, action: str) -> StepResult:
        return self._checked(environment.step(action), f"the action {action!r:.60}")

    def _checked(self, step: StepResult, what: str) -> StepResult:
        assert isinstance(step, StepResult), f"{self._where()}: returned {type(step).__name__} instead of a StepResult"
        assert pickle.loads(pickle.dumps(step)) == step, f"{self._where()}: a StepResult does not survive pickling"
        assert isinstance(step.admissible, tuple), f"{self._where()}: `admissible` must be a tuple"
        self._won.hear(what, step)
        return step

    def _where(self) -> str:
        return f"{self._spec.name}, task {self._task.get('id', self._task['instruction'])!r}"


def _resources() -> dict[str, int]:
    """Threads, child processes and open files of this process."""
    process = psutil.Process()
    files = process.num_fds() if hasattr(process, "num_fds") else process.num_handles()
    return {"threads": threading.active_count(), "processes": len(process.children()), "open files": files}


def _record(step: StepResult) -> Record:
    return (step.text, step.reward, step.done, step.truncated, step.valid, step.admissible, step.anchor)


def _same(expected: list[Record], got: list[Record], sentence: str, offset: int = 0) -> None:
    for number, (was, now) in enumerate(zip(expected, got, strict=True)):
        assert was == now, f"{sentence}: step {number + offset} was {was} and then {now}"


async def _check_pool(
    spec: EnvironmentSpec, options: Any, task: Mapping[str, Any], seed: int, actions: list[str], expected: list[Record]
) -> None:
    """The pool gives the same steps, also after a fork and after a crash, and stops cleanly."""
    pool = EnvironmentPool.of(spec, options, time_limit_s=60.0)
    try:
        handle, _ = await pool.open(task, seed)
        half = len(actions) // 2
        for action in actions[:half]:
            await handle.step(action)
        copy = await handle.fork()
        for action in actions[half:]:
            await handle.step(action)
        _same(
            expected,
            [_record(step) for step in handle.steps],
            f"{spec.name}: another process gives other steps for the same task, seed and actions",
        )
        await pool.kill_processes()
        for action in actions[half:]:
            await copy.step(action)
        _same(
            [_record(step) for step in handle.steps],
            [_record(step) for step in copy.steps],
            f"{spec.name}: a fork that was rebuilt by replay differs from its source",
        )
        await handle.replay()
        if not spec.asynchronous:  # nothing takes too long at once; `check_async_environment` makes something that does
            await _check_time_limit(pool, task, seed, actions)
        await copy.close()
        await handle.close()
    except EnvironmentFailure as failure:
        raise AssertionError(f"{spec.name}: behind the process pool: {failure}") from failure
    finally:
        await pool.close()


async def _check_time_limit(pool: EnvironmentPool, task: Mapping[str, Any], seed: int, actions: list[str]) -> None:
    """A call that exceeds its time limit loses its own episode; another one continues."""
    slow, _ = await pool.open(task, seed)
    other, first = await pool.open(task, seed)
    limit, pool.time_limit_s = pool.time_limit_s, 0.0
    try:
        await slow.step(NONSENSE)
    except EnvironmentFailure as failure:
        assert failure.kind == "timeout", f"a call beyond its limit was reported as {failure.kind!r}"
    else:
        raise AssertionError("a call beyond its limit was not reported")
    finally:
        pool.time_limit_s = limit
    answer = await other.step(actions[0] if actions else NONSENSE)
    assert answer.text is not None and other.steps[0] == first
    await other.close()
