"""Demonstrations: an expert speaks through the recipe's own worker, so the contexts are those that RL will see.

Each row is one context, token for token: `{input_ids, weights, role, task}`. The weights are 1 on what the policy
says and `Noise.observation_weight` on what it reads.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import os
import random
from collections.abc import Mapping
from dataclasses import asdict, dataclass, is_dataclass
from pathlib import Path
from typing import Any

from verl_hier.coldstart.experts import expert_of
from verl_hier.environments.base import Environment, Step
from verl_hier.environments.expert import Expert
from verl_hier.errors import RecipeError
from verl_hier.rollout.interfaces import Generation, Sampler, Sampling
from verl_hier.rollout.render import PlainRenderer
from verl_hier.rollout.rollout import Limits, Request, Rollout, roll_out
from verl_hier.specs import EnvironmentSpec, WorkerSpec
from verl_hier.trajectory.graph import RolloutGraph

logger = logging.getLogger(__name__)

FORMAT = 4
SUB_DONE = "<sub_done>"
SEPARATOR = " ; "


@dataclass(frozen=True)
class Noise:
    """How far demonstrations are from the expert, so that RL has something to mend.

    Attributes:
        random_action: chance that an action is a random one: one that is admissible now, one that was at some
            earlier point of the episode, or a beginner's mistake (`Expert.mistake`), a third each.
        random_weight: loss weight of such an action; with 0 the policy learns to go on after it, not to do it.
        skip_stage: chance that a goal is done without a stage that it needs.
        observation_weight: loss weight of tokens that the policy only reads; it helps a model from scratch to learn
            the language.
    """

    random_action: float = 0.12
    random_weight: float = 0.0
    skip_stage: float = 0.35
    observation_weight: float = 0.1


def write_demonstrations(
    environment: EnvironmentSpec,
    options: Any,
    worker: WorkerSpec,
    worker_options: Any,
    tokenizer: Any,
    path: str | Path | None = None,
    n: int = 480,
    noise: Noise | None = None,
    seed: int = 0,
    limits: Limits | None = None,
) -> Path:
    """Write `n` demonstrated episodes as a Parquet file, or find the file that an equal call wrote before.

    Args:
        environment: a registered environment whose instances offer an expert.
        options: its options; demonstrations use the training split.
        worker: the worker of the recipe: one role, or a planner above an executor.
        worker_options: its options.
        tokenizer: the model's tokenizer.
        path: the file, or None for one in the user's cache that is named after a hash of all arguments.
        n: episodes.
        noise: see `Noise`.
        seed: seed of the noise and of the choice of tasks.
        limits: limits of an episode, as the recipe has them.

    Returns:
        The file.
    """
    noise, limits = noise or Noise(), limits or Limits()
    key = _key(environment, options, worker, worker_options, tokenizer, n, noise, seed, limits)
    file = Path(path) if path is not None else cache_folder() / f"demonstrations-{key}.parquet"
    if _written_with(file) == key:
        logger.info("demonstrations are there already: %s", file)
        return file
    writer = _Demonstrator(environment, options, worker, worker_options, tokenizer, noise, limits)
    rows = asyncio.run(writer.write(n, seed))
    _save(file, rows, key)
    return file


def cache_folder() -> Path:
    """Where demonstrations are kept: `$XDG_CACHE_HOME/verl-hier`, by default `~/.cache/verl-hier`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "verl-hier"


class _World:
    """One environment in this process under the face of `environments.pool`: fast, and without its guards."""

    def __init__(self, make: Any) -> None:
        self.environment: Environment = make
        self.last: Step | None = None

    async def open(self, task: Mapping[str, Any], seed: int) -> tuple[_World, Step]:
        self.last = self.environment.reset(task, seed)
        return self, self.last

    async def step(self, action: str) -> Step:
        self.last = self.environment.step(action)
        return self.last

    async def fork(self) -> _World:
        # The rollout keeps its first world as a root and plays a fork of it; one episode needs no second world.
        return self

    async def close(self) -> None:
        """The world is used again for the next task."""


class _ExpertPolicy:
    """Answers like the expert: a planner's whole plan first, if there is one, then command by command."""

    def __init__(self, world: _World, tokenizer: Any, noise: Noise, rng: random.Random, hierarchical: bool) -> None:
        self._world = world
        self._tokenizer = tokenizer
        self._noise = noise
        self._rng = rng
        self._hierarchical = hierarchical
        self._expert: Expert | None = None
        self._subgoal = -1 if hierarchical else 0
        self._context: list[int] = []
        self._known: list[str] = []
        self.skipped = False
        self.random: list[bool] = []
        """For each turn, whether its action was random."""

    async def generate(self, prompt: list[int], sampling: Sampling, conversation: str) -> Generation:
        """See `rollout.Policy.generate`. No tokens mean that the expert has nothing left to do."""
        self.random.append(False)
        text = self._answer(prompt)
        if text is None:
            return Generation([], [], "completed")
        tokens = [*self._tokenizer.encode(text, add_special_tokens=False), self._tokenizer.eos_token_id]
        self._context = prompt + tokens
        return Generation(tokens, [0.0] * len(tokens), "completed")

    def _answer(self, prompt: list[int]) -> str | None:
        if self._expert is None:
            world = self._world.environment
            full = expert_of(world, random.Random(0), 0.0, remember=not self._hierarchical)
            self._expert = expert_of(world, self._rng, self._noise.skip_stage, remember=not self._hierarchical)
            self.skipped = self._expert.subgoals != full.subgoals
            if self._hierarchical:
                return SEPARATOR.join(self._expert.subgoals)
        elif self._hierarchical and prompt[: len(self._context)] != self._context:
            self._subgoal += 1
        return self._act(self._expert)

    def _act(self, expert: Expert) -> str | None:
        while self._subgoal < len(expert.subgoals):
            action = expert.advise(max(self._subgoal, 0))
            if action is not None:
                return self._maybe_random(expert, action)
            if self._hierarchical:
                return SUB_DONE
            self._subgoal += 1
        return None

    def _maybe_random(self, expert: Expert, action: str) -> str:
        possible = self._world.last.admissible if self._world.last is not None else ()
        self._known = list(dict.fromkeys((*self._known, *possible)))
        if self._rng.random() >= self._noise.random_action:
            return action
        kind = self._rng.randrange(3)
        if kind == 0:
            wrong = expert.mistake(max(self._subgoal, 0), self._rng)
        else:
            choices = possible if kind == 1 else self._known
            wrong = self._rng.choice(choices) if choices else None
        self.random[-1] = wrong is not None and wrong != action
        return wrong or action


class _One(Sampler):
    async def sample(self, rollout: Rollout) -> None:
        """One episode."""
        await rollout.start().run()


class _Demonstrator:
    def __init__(
        self,
        environment: EnvironmentSpec,
        options: Any,
        worker: WorkerSpec,
        worker_options: Any,
        tokenizer: Any,
        noise: Noise,
        limits: Limits,
    ) -> None:
        levels = sorted(set(worker.roles.values()))
        if levels not in ([0], [0, 1]) or len(worker.roles) != len(levels):
            raise RecipeError(
                f"hier.worker.name: no demonstrations for {worker.name!r}; they need a worker with one role, or with "
                "a planner (level 0) above an executor (level 1)."
            )
        self._hierarchical = len(levels) > 1
        self._worker = lambda: worker.factory(worker_options)
        self._tokenizer = tokenizer
        self._renderer = PlainRenderer(tokenizer)
        self._noise = noise
        self._limits = limits
        self._world = _World(environment.factory(options))
        self._tasks = environment.tasks(options, "train") if environment.tasks else []

    async def write(self, n: int, seed: int) -> list[dict[str, Any]]:
        """Rows of `n` episodes. An episode that the noise spoiled, though no stage was skipped, is left out."""
        rows: list[dict[str, Any]] = []
        kept = 0
        # The limit ends the search when an expert almost never wins.
        for attempt in range(4 * n):
            rng = random.Random(f"demonstration-{seed}-{attempt}")
            number = attempt % len(self._tasks)
            policy = _ExpertPolicy(self._world, self._tokenizer, self._noise, rng, self._hierarchical)
            graph = await self._episode(policy, number, seed)
            won = bool(self._world.last and self._world.last.info.get("won", self._world.last.done))
            if won or policy.skipped:
                rows += [row | {"task": number} for row in self._rows(graph, policy.random)]
                kept += 1
            if kept == n:
                return rows
        raise RecipeError(f"hier.environment.name: the expert won only {kept} of {4 * n} episodes; lower the noise.")

    async def _episode(self, policy: _ExpertPolicy, number: int, seed: int) -> RolloutGraph:
        task = self._tasks[number]
        request = Request(task=task, identity={"uid": str(number), "index": number}, n=1)
        rollout = Rollout(
            request,
            policy=policy,
            renderer=self._renderer,
            pool=self._world,  # type: ignore[arg-type]
            make_worker=self._worker,
            limits=self._limits,
            seed=seed,
        )
        return await roll_out(rollout, _One())

    def _rows(self, graph: RolloutGraph, random_turns: list[bool]) -> list[dict[str, Any]]:
        """One row for each context: its tokens from the first observation to the last action."""
        rows: dict[int, dict[str, Any]] = {}
        for node in graph.nodes:
            row = rows.pop(node.context, None) if node.context >= 0 else None
            row = row or {"input_ids": [], "weights": [], "role": node.role}
            row["input_ids"] += [*node.observation, *node.action]
            said = self._noise.random_weight if random_turns[node.id] else 1.0
            row["weights"] += [self._noise.observation_weight] * len(node.observation) + [said] * len(node.action)
            rows[node.id] = row
        for row in rows.values():
            # Nothing predicts a first token; verl shifts weights over the borders of rows, so it must be zero.
            row["weights"][0] = 0.0
        return list(rows.values())


def _key(
    environment: EnvironmentSpec, options: Any, worker: WorkerSpec, worker_options: Any, tokenizer: Any, *rest: Any
) -> str:
    vocabulary = sorted(tokenizer.get_vocab().items())
    parts = [FORMAT, environment.name, _plain(options), worker.name, _plain(worker_options), vocabulary]
    parts += [_plain(part) for part in rest]
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:16]


def _plain(value: Any) -> Any:
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else value


def _written_with(file: Path) -> str | None:
    """The key that a demonstrations file carries."""
    if not file.is_file():
        return None
    import pyarrow.parquet as parquet

    metadata: dict[bytes, bytes] = parquet.read_schema(file).metadata or {}
    return metadata.get(b"verl_hier.key", b"").decode()


def _save(file: Path, rows: list[dict[str, Any]], key: str) -> None:
    """Write beside and rename, so that a file that exists is whole."""
    import pyarrow
    import pyarrow.parquet as parquet

    file.parent.mkdir(parents=True, exist_ok=True)
    table = pyarrow.Table.from_pylist(rows).replace_schema_metadata({"verl_hier.key": key})
    beside = file.with_suffix(f".{os.getpid()}.tmp")
    parquet.write_table(table, beside)
    beside.replace(file)
