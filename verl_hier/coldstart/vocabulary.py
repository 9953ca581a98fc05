"""The words of an environment and its workers, collected by playing: what the tokenizer of a tiny model has to know."""

from __future__ import annotations

import inspect
import itertools
import random
import re
import string
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from verl_hier.coldstart.expert_policy import expert_of
from verl_hier.environments.blocking import build
from verl_hier.environments.expert import OffersVocabulary
from verl_hier.errors import RecipeError
from verl_hier.host.part import Part

SPLITS = ("train", "val", "test")
PATTERN = r"[a-z]+ \d+|[a-z]+|\d+|[:;|]"
"""What one token is: a numbered entity, a word, a number or one of four signs. Python and Rust read it alike."""
TAG = re.compile(r"</?[a-z_][a-z_0-9]*>")
"""An opening or closing tag; a token of its own."""

_COMPILED = re.compile(f"{TAG.pattern}|{PATTERN}")


def split_words(text: str) -> list[str]:
    """The words and tags of a text in order; everything else is dropped."""
    return _COMPILED.findall(text.lower())


def collect_texts(environment: Part, workers: Sequence[Part] = (), walks: int = 96, seed: int = 0) -> Iterator[str]:
    """Instructions of every task, and the texts and admissible actions of expert episodes on some of them.

    Args:
        environment: its instances offer an expert.
        workers: their prompt templates add their own words; `write_plan` of their options, where it exists, adds the
            words of plans.
        walks: tasks of each split on which the expert plays an episode.
        seed: seed of the random actions in those episodes.
    """
    spec, options = environment.spec, environment.options
    if spec.tasks is None:
        raise RecipeError(
            f"hier.environment.name: {spec.name!r} has no tasks of its own, so no small model can be made for them; "
            "choose another environment, or name a model with actor_rollout_ref.model.path."
        )
    for worker in workers:
        yield from template_words(worker.options)
    writers = [worker.options.write_plan for worker in workers if hasattr(worker.options, "write_plan")]
    instance = build(spec, options)
    if isinstance(instance, OffersVocabulary):
        yield from instance.vocabulary()
    for split in SPLITS:
        tasks = spec.tasks(options, split)
        yield from (str(task.get("instruction", "")) for task in tasks)
        for number, task in enumerate(itertools.islice(tasks, walks)):
            yield from _walk(instance, task, random.Random(f"{seed}-{split}-{number}"), writers)
    instance.close()


def template_words(options: Any) -> Iterator[str]:
    """The literal words of a worker's prompt templates (every option that is a text), and its own vocabulary."""
    if isinstance(options, OffersVocabulary):
        yield from options.vocabulary()
    for name, value in inspect.getmembers(options):
        if isinstance(value, str) and not name.startswith("_"):
            yield " ".join(literal for literal, *_ in string.Formatter().parse(value))


def _walk(
    environment: Any, task: dict[str, Any], rng: random.Random, writers: Iterable[Callable[[Sequence[str]], str]]
) -> Iterator[str]:
    """The texts of one expert episode in which every fifth action is random."""
    step = environment.reset(task, 0)
    expert = expert_of(environment, rng)
    information = [str(value) for value in step.info.values() if isinstance(value, str)]
    yield from (step.text, *information, *expert.subgoals, *(write(expert.subgoals) for write in writers))
    for number in range(len(expert.subgoals)):
        while not (step.done or step.truncated):
            action = expert.advise(number)
            if action is None:
                break
            yield from step.admissible
            if step.admissible and rng.random() < 0.2:
                action = rng.choice(step.admissible)
            step = environment.step(action)
            yield from (action, step.text)
    yield environment.step("no such action").text
