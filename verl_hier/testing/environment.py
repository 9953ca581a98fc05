"""Conformance of an environment: what the trainer relies on, checked by playing it. Call it from your own tests.

check_environment(SPEC, options)
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import pickle
import random
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import psutil

from verl_hier.environments.base import Environment, StepResult
from verl_hier.environments.expert import OffersExpert
from verl_hier.environments.pool import EnvironmentFailure, EnvironmentPool
from verl_hier.errors import HierError
from verl_hier.host.specs import EnvironmentSpec

NONSENSE = "xyzzy no such action"
Told = tuple[str, float, bool, bool, bool, tuple[str, ...], str | None]


def check_environment(
    spec: EnvironmentSpec,
    options: Any = None,
    tasks: int = 3,
    steps: int = 12,
    seed: int = 0,
    split: str = "train",
    isolated: bool = True,
    actions: Sequence[str] = (),
) -> None:
    """Play an environment and fail with a sentence where it breaks its contract.

    Checked: tasks are JSON-able; equal task, seed and actions give equal steps, also while others play in the same
    process and draw from its global random generators; an action that makes no sense is answered with `valid=False`
    and changes nothing; equal anchors go with equal possibilities; a fork is equal, independent, and outlives its
    source; closing leaves no thread, process or open file; the same steps come from behind the process pool, where a
    replay after a crash gives them again, and a call that takes too long costs its own episode only.

    Where a world lists no admissible actions it is played by `actions`, else by its expert, else by nonsense alone.

    Args:
        spec: the registered environment.
        options: its options, the defaults when None.
        tasks: how many tasks are played.
        steps: actions in each.
        seed: seed of the episodes and of the random actions.
        split: split whose tasks are played.
        isolated: also check behind the pool; the factory must then be importable by name.
        actions: what to try where the world cannot list what is possible.

    Raises:
        AssertionError: with a sentence about what is wrong.
    """
    options = spec.options() if options is None else options
    for number, task in enumerate(_tasks(spec, options, split, tasks)):
        player = _Player(spec, options, task, seed, random.Random(f"{seed}-{number}"), tuple(actions))
        played = player.play(steps)
        player.check_determinism(played)
        player.check_neighbours(played)
        player.check_nonsense(played)
        player.check_fork(played)
        player.close()
        player.check_close(played)
        if isolated:
            asyncio.run(_check_pool(spec, options, task, seed, played, player.history(played)))
            player.close()


def _tasks(spec: EnvironmentSpec, options: Any, split: str, count: int) -> list[Mapping[str, Any]]:
    import json

    assert spec.tasks is not None, f"the spec {spec.name!r} has no `tasks` function"
    found = spec.tasks(options, split)
    assert found, f"{spec.name}: `tasks` gives no task for the split {split!r}"
    assert found == spec.tasks(options, split), f"{spec.name}: `tasks` gives other tasks when it is called again"
    for task in found[:count]:
        assert task == json.loads(json.dumps(task)), f"{spec.name}: the task {task} is not JSON-able"
        assert "instruction" in task, f"{spec.name}: a task needs an `instruction`, which tells the policy what to do"
    return list(found[:count])


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
    ) -> None:
        self._spec, self._options, self._task, self._seed, self._rng = spec, options, task, seed, rng
        self._actions = actions
        self._made: list[Environment] = []

    def play(self, steps: int) -> list[str]:
        """Random actions, after which equal anchors must have meant equal possibilities."""
        world, step = self._start()
        seen: dict[str, tuple[str, ...]] = {}
        actions: list[str] = []
        while len(actions) < steps and not (step.done or step.truncated):
            if step.anchor is not None:
                known = seen.setdefault(step.anchor, step.admissible)
                assert known == step.admissible, (
                    f"{self._where()}: two states have the anchor {step.anchor!r} but other admissible actions"
                )
            action, listed = self._choose(world, step), step.admissible
            step = self._step(world, action)
            if step.valid is False and action in listed:
                raise AssertionError(f"{self._where()}: {action!r} was listed as admissible and then called invalid")
            actions.append(action)
        return actions

    def check_determinism(self, actions: list[str]) -> None:
        """Two instances with the same history, and one that is reset again, say the same."""
        first, second = self.history(actions), self.history(actions)
        _same(first, second, f"{self._where()}: not deterministic for the same task, seed and actions")
        world, _ = self._start()
        for action in actions:
            world.step(action)
        again = [_told(world.reset(self._task, self._seed)), *(_told(world.step(action)) for action in actions)]
        _same(first, again, f"{self._where()}: a second reset does not start from the beginning")

    def check_neighbours(self, actions: list[str]) -> None:
        """What others do in this process changes nothing: neither another instance nor the global generators."""
        expected = self.history(actions)
        with _stirred_generators() as stir:
            (world, step), (other, beside) = self._start(), self._start()
            got = [_told(step)]
            for action in actions:
                stir()
                if not (beside.done or beside.truncated):
                    beside = other.step(self._choose(other, beside))
                stir()
                got.append(_told(self._step(world, action)))
        sentence = (
            "not deterministic while others play in its process; give each instance a random generator of its own "
            "instead of the global one, and share nothing that changes"
        )
        _same(expected, got, f"{self._where()}: {sentence}")

    def check_nonsense(self, actions: list[str]) -> None:
        """An action that makes no sense is answered and changes nothing."""
        world, step = self._start()
        for action in actions[: len(actions) // 2]:
            step = world.step(action)
        if step.done or step.truncated:
            return
        try:
            answer = self._step(world, NONSENSE)
        except Exception as error:
            raise AssertionError(
                f"{self._where()}: an action that makes no sense raised {type(error).__name__}: {error}; "
                "answer it with valid=False"
            ) from error
        assert not answer.valid, f"{self._where()}: {NONSENSE!r} was called valid"
        assert answer.anchor == step.anchor, f"{self._where()}: an invalid action changed the state (anchor)"
        assert answer.admissible == step.admissible, f"{self._where()}: an invalid action changed what is admissible"

    def check_fork(self, actions: list[str]) -> None:
        """A fork says what its source would have said, neither disturbs the other, and it outlives its source."""
        half = len(actions) // 2
        expected = self.history(actions)[half + 1 :]
        world, step = self._walk(actions[:half])
        copy = world.fork()
        if copy is None:
            return
        self._made.append(copy)
        assert self._spec.can_fork, f"{self._spec.name}: it forks, but its spec says can_fork=False"
        # Lead the source astray first: a fork that shares its state would follow.
        world.step(step.admissible[-1] if step.admissible else self._choose(world, step))
        broken = f"{self._where()}: a fork differs from its source or is not independent of it"
        _same(expected, [_told(copy.step(action)) for action in actions[half:]], broken, half + 1)
        # The other way round: what the fork did is unknown to its source.
        world, _ = self._walk(actions[:half])
        self._play_and_close(world.fork(), actions[half:])
        astray = f"{self._where()}: a fork that was played and closed disturbed its source"
        _same(expected, [_told(world.step(action)) for action in actions[half:]], astray, half + 1)
        # A sampler prunes episodes whose forks go on.
        world, _ = self._walk(actions[:half])
        copy = world.fork()
        assert copy is not None, f"{self._where()}: it forked once and then no more"
        self._made.append(copy)
        self._play_and_close(world, [])
        orphan = f"{self._where()}: a fork does not outlive its source"
        _same(expected, [_told(copy.step(action)) for action in actions[half:]], orphan, half + 1)

    def check_close(self, actions: list[str]) -> None:
        """Closing gives back what an instance took: threads, child processes, open files."""
        # The first round loads what stays for good: modules, caches, shared libraries.
        self._come_and_go(actions)
        for attempt in reversed(range(3)):
            before = _holdings()
            for _ in range(3):
                self._come_and_go(actions)
            left = {what: count - before[what] for what, count in _holdings().items() if count > before[what]}
            if not left:
                return
            # Something else in this process may have taken one, but not three times in a row.
            assert attempt, f"{self._where()}: three instances were closed and left behind: {left}"

    def close(self) -> None:
        """Every instance must close quietly."""
        while self._made:
            self._made.pop().close()

    def history(self, actions: list[str]) -> list[Told]:
        """What a fresh instance says."""
        world, step = self._start()
        return [_told(step), *(_told(self._step(world, action)) for action in actions)]

    def _choose(self, world: Environment, step: StepResult) -> str:
        """A random action that is possible, as far as anything tells what is."""
        if step.admissible or self._actions:
            return self._rng.choice(step.admissible or self._actions)
        return self._advice(world) or NONSENSE

    def _advice(self, world: Environment) -> str | None:
        """What the world's expert would do now, or half the time a beginner; None without an expert for the task."""
        if not isinstance(world, OffersExpert):
            return None
        try:
            expert = world.expert(random.Random(self._seed))
        except HierError:
            return None
        for number in range(len(expert.subgoals)):
            action = expert.advise(number)
            if action is not None:
                mistake = expert.mistake(number, self._rng) if self._rng.random() < 0.5 else None
                return mistake or action
        return None

    def _walk(self, actions: list[str]) -> tuple[Environment, StepResult]:
        world, step = self._start()
        for action in actions:
            step = world.step(action)
        return world, step

    def _play_and_close(self, world: Environment | None, actions: list[str]) -> None:
        assert world is not None, f"{self._where()}: it forked once and then no more"
        for action in actions:
            world.step(action)
        world.close()
        self._made = [made for made in self._made if made is not world]

    def _come_and_go(self, actions: list[str]) -> None:
        world, _ = self._walk(actions)
        copy = world.fork()
        if copy is not None:
            copy.close()
        self._play_and_close(world, [])
        gc.collect()

    def _start(self) -> tuple[Environment, StepResult]:
        world = self._spec.factory(self._options)
        assert isinstance(world, Environment), f"{self._spec.name}: the factory gave no Environment but {type(world)}"
        self._made.append(world)
        step = world.reset(self._task, self._seed)
        return world, self._checked(step)

    def _step(self, world: Environment, action: str) -> StepResult:
        return self._checked(world.step(action))

    def _checked(self, step: StepResult) -> StepResult:
        assert isinstance(step, StepResult), f"{self._where()}: answered {type(step).__name__} instead of a Step"
        assert pickle.loads(pickle.dumps(step)) == step, f"{self._where()}: a Step does not survive pickling"
        assert isinstance(step.admissible, tuple), f"{self._where()}: `admissible` must be a tuple"
        return step

    def _where(self) -> str:
        return f"{self._spec.name}, task {self._task.get('id', self._task['instruction'])!r}"


@contextlib.contextmanager
def _stirred_generators() -> Iterator[Any]:
    """A function that leaves the global generators in another state at every call; they are restored at the end."""
    draws = random.Random(0)
    saved = random.getstate(), np.random.get_state()

    def stir() -> None:
        random.seed(draws.random())
        np.random.seed(draws.getrandbits(31))

    try:
        yield stir
    finally:
        random.setstate(saved[0])
        np.random.set_state(saved[1])


def _holdings() -> dict[str, int]:
    """What this process holds."""
    process = psutil.Process()
    files = process.num_fds() if hasattr(process, "num_fds") else process.num_handles()
    return {"threads": threading.active_count(), "processes": len(process.children()), "open files": files}


def _told(step: StepResult) -> Told:
    return (step.text, step.reward, step.done, step.truncated, step.valid, step.admissible, step.anchor)


def _same(expected: list[Told], got: list[Told], sentence: str, offset: int = 0) -> None:
    for number, (was, now) in enumerate(zip(expected, got, strict=True)):
        assert was == now, f"{sentence}: step {number + offset} said {was} and then {now}"


async def _check_pool(
    spec: EnvironmentSpec, options: Any, task: Mapping[str, Any], seed: int, actions: list[str], expected: list[Told]
) -> None:
    """Texts behind the pool, after a fork, after a crash; and a clean end."""
    pool = EnvironmentPool(spec.factory, options, processes=1, time_limit_s=60.0)
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
            [_told(step) for step in handle.steps],
            f"{spec.name}: another process gives other steps for the same task, seed and actions",
        )
        await pool.kill_processes()
        for action in actions[half:]:
            await copy.step(action)
        _same(
            [_told(step) for step in handle.steps],
            [_told(step) for step in copy.steps],
            f"{spec.name}: a fork that was rebuilt by replay differs from its source",
        )
        await handle.replay()
        await _check_time_limit(pool, task, seed, actions)
        await copy.close()
        await handle.close()
    except EnvironmentFailure as failure:
        raise AssertionError(f"{spec.name}: behind the process pool: {failure}") from failure
    finally:
        await pool.close()


async def _check_time_limit(pool: EnvironmentPool, task: Mapping[str, Any], seed: int, actions: list[str]) -> None:
    """A call that takes too long costs its own episode; another one goes on."""
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
