"""The language of an environment, heard by walking through it: what a tiny tokenizer has to know."""

from __future__ import annotations

import inspect
import itertools
import random
import string
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from verl_hier.coldstart.experts import start
from verl_hier.environments.expert import OffersVocabulary
from verl_hier.host.specs import EnvironmentSpec, WorkerSpec

SPLITS = ("train", "val", "test")


def collect_texts(
    environment: EnvironmentSpec,
    options: Any,
    workers: tuple[tuple[WorkerSpec, Any], ...] = (),
    walks: int = 96,
    seed: int = 0,
) -> Iterator[str]:
    """Instructions of every task, and what is said and can be said on expert walks through some of them.

    Args:
        environment: a registered environment whose instances offer an expert.
        options: its options.
        workers: worker specs with their options, whose prompt templates add their own words, and whose `write_plan`,
            where they have one, adds those of its plans.
        walks: tasks of each split that are walked through.
        seed: seed of the random actions that widen the walks.
    """
    if environment.tasks is None:
        raise TypeError(f"the environment {environment.name!r} has no tasks")
    for _, worker_options in workers:
        yield from template_words(worker_options)
    writers = [options.write_plan for _, options in workers if hasattr(options, "write_plan")]
    world = environment.factory(options)
    if isinstance(world, OffersVocabulary):
        yield from world.vocabulary()
    for split in SPLITS:
        tasks = environment.tasks(options, split)
        yield from (str(task.get("instruction", "")) for task in tasks)
        for number, task in enumerate(itertools.islice(tasks, walks)):
            yield from _walk(world, task, random.Random(f"{seed}-{split}-{number}"), writers)
    world.close()


def template_words(options: Any) -> Iterator[str]:
    """The literal words of a worker's prompt templates (every text option), and what else its options say it needs."""
    if isinstance(options, OffersVocabulary):
        yield from options.vocabulary()
    for name, value in inspect.getmembers(options):
        if isinstance(value, str) and not name.startswith("_"):
            yield " ".join(literal for literal, *_ in string.Formatter().parse(value))


def _walk(
    world: Any, task: dict[str, Any], rng: random.Random, writers: Iterable[Callable[[Sequence[str]], str]]
) -> Iterator[str]:
    expert, step = start(world, task, rng)
    said = [str(value) for value in step.info.values() if isinstance(value, str)]
    yield from (step.text, *said, *expert.subgoals, *(write(expert.subgoals) for write in writers))
    for number in range(len(expert.subgoals)):
        while not (step.done or step.truncated):
            action = expert.advise(number)
            if action is None:
                break
            yield from step.admissible
            if step.admissible and rng.random() < 0.2:
                action = rng.choice(step.admissible)
            step = world.step(action)
            yield from (action, step.text)
    yield world.step("no such action").text
