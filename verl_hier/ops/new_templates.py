"""Files of a new plugin package. `$name` and friends are filled in by `verl_hier.ops.new`."""

PYPROJECT = """\
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "$distribution"
version = "0.1.0"
description = "$kind $name for verl-hier"
requires-python = ">=3.10"
dependencies = ["verl-hier>=$version"]

[project.optional-dependencies]
dev = ["pytest>=8"]

[project.entry-points."verl_hier.plugins"]
$name = "$name"

[tool.setuptools]
packages = ["$name"]
"""

README = """\
# $distribution

The $kind `$name` for verl-hier.

    pip install -e '.[dev]'
    pytest
    verl-hier ${kind}s $name --enable $name

In a recipe:

```yaml
hier:
  plugins: {$name: true}
  $kind: {name: $name}
```
"""

ESTIMATOR = '''\
"""The estimator `$name`."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from verl_hier.credit import episode_advantage, step_mean, trained_only
from verl_hier.hookspecs import hookimpl
from verl_hier.host.specs import EstimatorSpec
from verl_hier.graph import TurnTable


@dataclass(frozen=True)
class Options:
    """What a recipe can set under `hier.estimator`."""

    weight: float = 1.0
    """Factor of the advantage."""


def advantage(table: TurnTable, options: Options) -> NDArray[np.float64]:
    """(T,) one number a turn: here the return of its episode against the other episodes of the task."""
    episodes = episode_advantage(table)
    return trained_only(table, options.weight * step_mean(table, episodes[table.step_episode]))


@hookimpl
def hier_estimators() -> list[EstimatorSpec]:
    """Brings `$name`."""
    return [
        EstimatorSpec(
            name="$name",
            factory=advantage,
            options=Options,
            summary="in a line: who gets the credit",
            requires=("trained", "episodes.return", "episodes.group", "episodes.trained"),
        )
    ]
'''

ESTIMATOR_TEST = """\
import numpy as np
from verl_hier.testing.conformance import make_table
from verl_hier.credit.estimate import estimate
from verl_hier.host.manager import PluginHost
from verl_hier.host.specs import build_options
from verl_hier.testing.estimator import check_estimator

SPEC = PluginHost.load({"$name": True}).spec("estimator", "$name")


def test_it_keeps_the_promises_of_every_estimator() -> None:
    check_estimator(SPEC, timing=False)


def test_a_won_episode_gets_more_credit_than_a_lost_one() -> None:
    table = make_table({"group": [0, 0, 0], "episode": [0, 0, 1], "turn": [0, 1, 0], "reward": [0.0, 1.0, 0.0]})
    credit = estimate(SPEC, table, build_options(SPEC, {"weight": 2.0}))
    assert np.isclose(credit.values[0], credit.values[1])
    assert credit.values[0] > 0 > credit.values[2]
"""

WORKER = '''\
"""The worker `$name`."""

from dataclasses import dataclass

from verl_hier.hookspecs import hookimpl
from verl_hier.rollout import Worker
from verl_hier.rollout.episode_view import Stage
from verl_hier.host.specs import WorkerSpec


@dataclass(frozen=True)
class Options:
    """What a recipe can set under `hier.worker`."""

    prompt: str = "task: {instruction} | {observation}"
    """What the agent sees first."""


class $cls(Worker):
    """One agent that acts on its whole history."""

    def __init__(self, options: Options) -> None:
        self._options = options

    async def run(self, episode: EpisodeView) -> None:
        """Play one episode; a pure function of what `episode` returns."""
        step = await episode.reset()
        agent = episode.context("agent")
        agent.observe(self._options.prompt.format(instruction=episode.instruction, observation=step.text))
        while not (step.done or step.truncated):
            turn = await episode.generate(agent)
            step = await episode.act(turn.text)
            agent.observe(step.text)


@hookimpl
def hier_workers() -> list[WorkerSpec]:
    """Brings `$name`."""
    return [
        WorkerSpec(
            name="$name",
            factory=$cls,
            options=Options,
            summary="in a line: who speaks next, with what context",
            roles={"agent": 0},
        )
    ]
'''

SAMPLER = '''\
"""The sampler `$name`."""

from dataclasses import dataclass

from verl_hier.errors import RecipeError
from verl_hier.hookspecs import hookimpl
from verl_hier.rollout import Sampler
from verl_hier.rollout.rollout import Rollout
from verl_hier.host.specs import SamplerSpec


@dataclass(frozen=True)
class Options:
    """What a recipe can set under `hier.sampler`."""

    trees: int = 1
    """Episodes that start from the beginning; the others branch off them after one turn."""


class $cls(Sampler):
    """Starts a few episodes and branches each after its first turn."""

    def __init__(self, options: Options) -> None:
        self._options = options

    async def sample(self, rollout: Rollout) -> None:
        """Make `rollout.n` episodes of one task."""
        roots = [rollout.start() for _ in range(self._options.trees)]
        await rollout.gather(root.step() for root in roots)
        more = rollout.n - len(roots)
        branches = [await roots[number % len(roots)].fork(after=1) for number in range(more)]
        await rollout.gather(episode.run() for episode in [*roots, *branches])


def _episodes(options: Options, n: int) -> int:
    if n < options.trees:
        raise RecipeError(f"actor_rollout_ref.rollout.n: $name starts {options.trees} trees, more than n = {n}.")
    return n


@hookimpl
def hier_samplers() -> list[SamplerSpec]:
    """Brings `$name`."""
    return [
        SamplerSpec(
            name="$name",
            factory=$cls,
            options=Options,
            summary="in a line: which episodes exist",
            episodes=_episodes,
            needs_fork=True,
        )
    ]
'''

ENVIRONMENT = '''\
"""The environment `$name`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from verl_hier.environments.base import Environment, StepResult
from verl_hier.hookspecs import hookimpl
from verl_hier.host.specs import EnvironmentSpec


@dataclass(frozen=True)
class Options:
    """What a recipe can set under `hier.environment`."""

    tasks: int = 64
    """Tasks of the training split."""


class $cls(Environment):
    """A counter that has to reach a number."""

    def __init__(self, options: Options) -> None:
        self._options = options

    def reset(self, task: Mapping[str, Any], seed: int) -> StepResult:
        """Start a task; deterministic in `task` and `seed`."""
        self._goal, self._count = int(task["goal"]), 0
        return self._answer()

    def step(self, action: str) -> StepResult:
        """Apply an action; one that makes no sense is answered with `valid=False`."""
        if action.strip() != "up":
            return StepResult(text="say up", valid=False, admissible=("up",), anchor=str(self._count))
        self._count += 1
        return self._answer()

    def _answer(self) -> StepResult:
        won = self._count == self._goal
        return StepResult(
            text=f"the counter is at {self._count}",
            reward=float(won),
            done=won,
            admissible=("up",),
            anchor=str(self._count),
            info={"won": won},
        )


def tasks(options: Options, split: str) -> list[dict[str, Any]]:
    """JSON-able tasks of a split."""
    first = 0 if split == "train" else options.tasks
    goals = (2 + number % 3 for number in range(first, first + options.tasks))
    return [{"instruction": f"count to {goal}", "goal": goal} for goal in goals]


@hookimpl
def hier_environments() -> list[EnvironmentSpec]:
    """Brings `$name`."""
    return [
        EnvironmentSpec(
            name="$name",
            factory=$cls,
            options=Options,
            summary="in a line: the world",
            tasks=tasks,
            can_fork=True,
        )
    ]
'''

_ROLL_OUT = '''\
import asyncio
from collections.abc import Mapping
from typing import Any

from verl_hier.environments.base import Environment, StepResult
from verl_hier.host.manager import PluginHost
from verl_hier.testing.rollout import roll_out_scripted


class Three(Environment):
    """Ends after three steps; wins when the last action was `go`."""

    def reset(self, task: Mapping[str, Any], seed: int) -> StepResult:
        self._steps = 0
        return StepResult(text="start")

    def step(self, action: str) -> StepResult:
        self._steps += 1
        done = self._steps == 3
        return StepResult(text=f"step {self._steps}", done=done, reward=float(done and action == "go"))


'''

WORKER_TEST = (
    _ROLL_OUT
    + """\
def test_an_episode_is_played_to_its_end() -> None:
    host = PluginHost.load({"builtin": True, "$name": True})
    spec, sampler = host.spec("worker", "$name"), host.spec("sampler", "independent")
    graph, policy = asyncio.run(
        roll_out_scripted(
            environment=Three,
            worker=lambda: spec.factory(spec.options()),
            sampler=sampler.factory(sampler.options()),
            answer=lambda prompt, sampling: "go",
            n=2,
        )
    )
    assert [episode.ret for episode in graph.complete()] == [1.0, 1.0]
    assert len(policy.prompts) == 6
"""
)

SAMPLER_TEST = (
    _ROLL_OUT
    + """\
def test_n_episodes_share_the_first_turn_of_their_tree() -> None:
    host = PluginHost.load({"builtin": True, "$name": True})
    spec, worker = host.spec("sampler", "$name"), host.spec("worker", "react")
    graph, _ = asyncio.run(
        roll_out_scripted(
            environment=Three,
            worker=lambda: worker.factory(worker.options()),
            sampler=spec.factory(spec.options()),
            answer=lambda prompt, sampling: "go",
            n=4,
        )
    )
    episodes = list(graph.complete())
    assert len(episodes) == 4
    assert len({graph.path(episode.id)[0] for episode in episodes}) == 1
"""
)

ENVIRONMENT_TEST = """\
from verl_hier.host.manager import PluginHost
from verl_hier.testing.environment import check_environment

SPEC = PluginHost.load({"$name": True}).spec("environment", "$name")


def test_it_keeps_the_promises_of_every_environment() -> None:
    check_environment(SPEC)


def test_counting_up_wins() -> None:
    task = SPEC.tasks(SPEC.options(), "train")[0]
    world = SPEC.factory(SPEC.options())
    steps = [world.reset(task, seed=0), *(world.step("up") for _ in range(task["goal"]))]
    assert steps[-1].done and steps[-1].reward == 1.0
"""

MODULES = {"estimator": ESTIMATOR, "worker": WORKER, "sampler": SAMPLER, "environment": ENVIRONMENT}
TESTS = {
    "estimator": ESTIMATOR_TEST,
    "worker": WORKER_TEST,
    "sampler": SAMPLER_TEST,
    "environment": ENVIRONMENT_TEST,
}
