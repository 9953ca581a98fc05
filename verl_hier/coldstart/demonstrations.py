"""Demonstrations: an expert generates the turns of the recipe's own worker, so the contexts are those of the RL run.

Each row is one context, token for token: `{input_ids, weights, role, task}`. The weights are 1 on the turns of the
policy and `Noise.observation_weight` on everything else.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import os
import random
from contextlib import closing
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

from verl_hier.coldstart.episodes import LocalEnvironment, play
from verl_hier.coldstart.expert_policy import ExpertPolicy, Noise, is_hierarchical
from verl_hier.coldstart.rows import key_of, rows_of, save
from verl_hier.environments.blocking import build
from verl_hier.errors import RecipeError
from verl_hier.host.part import Part
from verl_hier.rollout import Limits
from verl_hier.rollout.plain_renderer import PlainRenderer

logger = logging.getLogger(__name__)

FORMAT = 4


def write_demonstrations(
    environment: Part,
    worker: Part,
    tokenizer: Any,
    path: str | Path | None = None,
    n: int = 480,
    noise: Noise | None = None,
    seed: int = 0,
    limits: Limits | None = None,
) -> Path:
    """Write `n` demonstrated episodes as a Parquet file, or find the file that an equal call wrote before.

    Args:
        environment: its instances offer an expert; demonstrations use the training split.
        worker: the worker of the recipe: the expert plays one role, or a planner above an executor.
        tokenizer: the model's tokenizer.
        path: the file, or None for one in the user's cache that is named after a hash of all arguments.
        n: episodes.
        noise: see `Noise`.
        seed: seed of the noise and of the choice of tasks.
        limits: limits of an episode, as the recipe has them.

    Returns:
        The file.

    Raises:
        RecipeError: when the environment has no expert, the expert cannot play the worker, or it hardly ever wins.
    """
    noise, limits = noise or Noise(), limits or Limits()
    key = _key(environment, worker, tokenizer, n, noise, seed, limits)
    file = Path(path) if path is not None else cache_folder() / f"demonstrations-{key}.parquet"
    if key_of(file) == key:
        logger.info("demonstrations exist already: %s", file)
        return file
    save(file, asyncio.run(_demonstrate(environment, worker, tokenizer, n, noise, seed, limits)), key)
    return file


def cache_folder() -> Path:
    """Where demonstrations are kept: `$XDG_CACHE_HOME/verl-hier`, by default `~/.cache/verl-hier`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "verl-hier"


async def _demonstrate(
    environment: Part, worker: Part, tokenizer: Any, n: int, noise: Noise, seed: int, limits: Limits
) -> list[dict[str, Any]]:
    """Rows of `n` episodes. An episode that was lost to the noise, although no stage was skipped, is left out."""
    hierarchical = is_hierarchical(worker)
    with closing(build(environment.spec, environment.options)) as world:
        local = LocalEnvironment(world)
        if environment.spec.tasks is None:
            raise RecipeError(
                f"hier.environment.name: {environment.spec.name!r} has no tasks that could be demonstrated."
            )
        tasks = environment.spec.tasks(environment.options, "train")
        renderer = PlainRenderer(tokenizer)

        def encode(text: str) -> list[int]:
            return [*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id]

        rows: list[dict[str, Any]] = []
        kept = 0
        # The limit ends the search when an expert almost never wins.
        for attempt in range(4 * n):
            rng = random.Random(f"demonstration-{seed}-{attempt}")
            number = attempt % len(tasks)
            policy = ExpertPolicy(local, encode, noise, rng, hierarchical, worker.options)
            graph, _ = await play(
                local,
                tasks[number],
                worker,
                policy,
                renderer,
                limits,
                number,
                seed=seed,
            )
            if local.won or policy.skipped:
                weights = [noise.random_weight if random_turn else 1.0 for random_turn in policy.random]
                found = rows_of(graph, lambda node: weights[node.id], noise.observation_weight)  # noqa: B023 - called here
                rows += [row | {"task": number} for row in found]
                kept += 1
            if kept == n:
                return rows
        raise RecipeError(f"hier.environment.name: the expert won only {kept} of {4 * n} episodes; lower the noise.")


def _key(environment: Part, worker: Part, tokenizer: Any, *rest: Any) -> str:
    vocabulary = sorted(tokenizer.get_vocab().items())
    parts = [FORMAT, environment.spec.name, _plain(environment.options), worker.spec.name, _plain(worker.options)]
    parts += [vocabulary, *(_plain(part) for part in rest)]
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:16]


def _plain(value: Any) -> Any:
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else value
