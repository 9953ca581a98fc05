"""The words of a worker: what it says and hears in expert episodes, so that no word of a transcript is unknown."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Iterator
from typing import Any

from verl_hier.coldstart.distill import PreparedTurns, for_system
from verl_hier.coldstart.episodes import LocalEnvironment, play
from verl_hier.coldstart.expert_policy import ExpertPolicy, Noise, is_hierarchical
from verl_hier.environments.blocking import build
from verl_hier.host.part import Part
from verl_hier.rollout import Limits, Policy
from verl_hier.served.policy import Messages

NOISE = Noise(random_action=0.2, skip_stage=0.0)
"""Enough mistakes to hear what is said after one."""


def worker_texts(
    environment: Part,
    worker: Part,
    system: Part | None,
    limits: Limits,
    seed: int = 0,
    remember: bool = True,
    episodes: int = 32,
) -> Iterator[str]:
    """Every message of some expert episodes: the worker's prompts as they are filled, and its turns.

    Args:
        environment: where they are played; its instances offer an expert.
        worker: whose messages are wanted.
        system: the worker that the expert plays first where `worker` has `transcribe`; None where the expert plays
            `worker` itself.
        limits: limits of an episode.
        seed: seed of the expert's mistakes.
        remember: see `ExpertPolicy`.
        episodes: tasks of the training split that are played.
    """
    yield from asyncio.run(_worker_texts(environment, worker, system, limits, seed, remember, episodes))


async def _worker_texts(
    environment: Part, worker: Part, system: Part | None, limits: Limits, seed: int, remember: bool, episodes: int
) -> list[str]:
    local, messages = LocalEnvironment(build(environment.spec, environment.options)), Messages()
    # A token is a message here.
    limits = for_system(limits)

    async def one(part: Part, policy: Policy, renderer: Messages, task: dict[str, Any], number: int) -> Any:
        return (await play(local, task, part, policy, renderer, limits, number, seed=seed))[1]

    try:
        tasks = environment.spec.tasks(environment.options, "train")
        for number, task in enumerate(itertools.islice(tasks, episodes)):
            rng = random.Random(f"spoken-{seed}-{number}")
            if system is None:
                await one(worker, _expert(local, messages, rng, worker, None), messages, task, number)
                continue
            theirs = Messages()
            transcript = await one(system, _expert(local, theirs, rng, system, remember), theirs, task, number)
            try:
                turns = worker.spec.transcribe(worker.options, transcript)
            except ValueError:
                continue
            await one(worker, PreparedTurns(turns, messages.turn), messages, task, number)
    finally:
        local.environment.close()
    return messages.texts


def _expert(
    local: LocalEnvironment, messages: Messages, rng: random.Random, part: Part, remember: bool | None
) -> ExpertPolicy:
    return ExpertPolicy(local, messages.turn, NOISE, rng, is_hierarchical(part), part.options, remember)
