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
from dataclasses import asdict, is_dataclass
from functools import partial
from pathlib import Path
from typing import Any

from verl_hier.coldstart.episodes import World, play
from verl_hier.coldstart.expert_policy import ExpertPolicy, Noise, is_hierarchical
from verl_hier.coldstart.rows import rows_of, save, written_with
from verl_hier.errors import RecipeError
from verl_hier.graph.nodes import Node
from verl_hier.host.specs import EnvironmentSpec, WorkerSpec
from verl_hier.rollout import Limits
from verl_hier.rollout.plain_renderer import PlainRenderer

logger = logging.getLogger(__name__)

FORMAT = 4


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
        worker: the worker of the recipe: the expert plays one role, or a planner above an executor.
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
    if written_with(file) == key:
        logger.info("demonstrations are there already: %s", file)
        return file
    writer = _Demonstrator(environment, options, worker, worker_options, tokenizer, noise, limits)
    rows = asyncio.run(writer.write(n, seed))
    save(file, rows, key)
    return file


def cache_folder() -> Path:
    """Where demonstrations are kept: `$XDG_CACHE_HOME/verl-hier`, by default `~/.cache/verl-hier`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "verl-hier"


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
        self._worker = worker
        self._worker_options = worker_options
        self._hierarchical = is_hierarchical(worker, worker_options)
        self._tokenizer = tokenizer
        self._noise = noise
        self._limits = limits
        self._world = World(environment.factory(options))
        self._tasks = environment.tasks(options, "train") if environment.tasks else []

    async def write(self, n: int, seed: int) -> list[dict[str, Any]]:
        """Rows of `n` episodes. An episode that the noise spoiled, though no stage was skipped, is left out."""
        rows: list[dict[str, Any]] = []
        kept = 0
        renderer = PlainRenderer(self._tokenizer)
        # The limit ends the search when an expert almost never wins.
        for attempt in range(4 * n):
            rng = random.Random(f"demonstration-{seed}-{attempt}")
            number = attempt % len(self._tasks)
            policy = ExpertPolicy(self._world, self._encode, self._noise, rng, self._hierarchical, self._worker_options)
            graph, _ = await play(
                self._world,
                self._tasks[number],
                lambda: self._worker.factory(self._worker_options),
                policy,
                renderer,
                self._limits,
                number,
                seed=seed,
            )
            if self._world.won or policy.skipped:
                told = rows_of(graph, partial(self._weight, policy.random), self._noise.observation_weight)
                rows += [row | {"task": number} for row in told]
                kept += 1
            if kept == n:
                return rows
        raise RecipeError(f"hier.environment.name: the expert won only {kept} of {4 * n} episodes; lower the noise.")

    def _encode(self, text: str) -> list[int]:
        return [*self._tokenizer.encode(text, add_special_tokens=False), self._tokenizer.eos_token_id]

    def _weight(self, random_turns: list[bool], node: Node) -> float:
        return self._noise.random_weight if random_turns[node.id] else 1.0


def _key(
    environment: EnvironmentSpec, options: Any, worker: WorkerSpec, worker_options: Any, tokenizer: Any, *rest: Any
) -> str:
    vocabulary = sorted(tokenizer.get_vocab().items())
    parts = [FORMAT, environment.name, _plain(options), worker.name, _plain(worker_options), vocabulary]
    parts += [_plain(part) for part in rest]
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:16]


def _plain(value: Any) -> Any:
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else value
