"""The whole cold start of recipes on one world: model, demonstrations in each recipe's format, supervised training."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from verl_hier.coldstart.demonstrations import write_demonstrations
from verl_hier.coldstart.distill import DATA, Distillation, Expertise, Student, Weights, distill
from verl_hier.coldstart.expert_policy import Noise
from verl_hier.coldstart.sft import run_sft
from verl_hier.coldstart.tiny import build_tiny
from verl_hier.coldstart.vocabulary import collect_texts
from verl_hier.recipe.composed import ComposedRecipe
from verl_hier.rollout.plain_renderer import PlainRenderer

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ColdStart:
    """What a policy is before reinforcement learning.

    Attributes:
        recipes: recipes whose workers must be able to speak; one model learns the formats of all of them.
        overrides: variants of the tasks, each a list of Hydra overrides; demonstrations are divided between them.
        demonstrations: episodes in all, the same tasks for each recipe.
        steps: optimiser steps of the supervised training.
        seed: seed of weights, demonstrations and the order of rows.
        system: recipe that the expert plays where a recipe's own worker is one that tells what others did; its episodes
            are distilled.
    """

    recipes: tuple[str, ...]
    overrides: tuple[tuple[str, ...], ...] = ((),)
    demonstrations: int = 480
    steps: int = 1300
    seed: int = 0
    system: str = "himac_alfworld"


def cold_start(plan: ColdStart, folder: Path, report: Callable[[str], None] = logger.info) -> Path:
    """The folder of the trained model; what an equal call made before in `folder` is used again.

    Args:
        plan: what to make.
        folder: gets `tiny/`, `demonstrations_*`, `sft/` and the plan.
        report: told what happens, one sentence each.
    """
    from transformers import AutoTokenizer

    key = hashlib.sha256(json.dumps(asdict(plan), sort_keys=True).encode()).hexdigest()
    model, marker = folder / "sft" / "model", folder / "plan.sha256"
    if model.is_dir() and marker.is_file() and marker.read_text() == key:
        report(f"the cold start is there already: {model}")
        return model
    variants = [
        (ComposedRecipe.named(recipe, overrides), overrides) for recipe in plan.recipes for overrides in plan.overrides
    ]
    report("building a model of 200k parameters and its vocabulary")
    texts = [text for recipe, _ in variants for text in texts_of(recipe, plan.seed)]
    tiny = build_tiny(folder / "tiny", texts, seed=plan.seed)
    tokenizer = AutoTokenizer.from_pretrained(str(tiny))
    report(f"writing {plan.demonstrations} demonstrations by the world's expert")
    files = [
        demonstrate(plan, recipe, overrides, tokenizer, folder / f"demonstrations_{number}")
        for number, (recipe, overrides) in enumerate(variants)
    ]
    report(f"{plan.steps} supervised steps by verl's own SFT trainer (log: {folder / 'sft' / 'sft.log'})")
    run_sft(tiny, _paths(files), folder / "sft", steps=plan.steps, seed=plan.seed)
    marker.write_text(key)
    return model


def demonstrate(plan: ColdStart, recipe: ComposedRecipe, overrides: Sequence[str], tokenizer: Any, path: Path) -> Path:
    """A file of rows in one recipe's format: the expert's own, or distilled where its worker tells what others did.

    Args:
        plan: how many, from which seed, and what is distilled.
        recipe: whose worker speaks.
        overrides: what made the recipe, for `plan.system`.
        tokenizer: the model's.
        path: where, without an ending.
    """
    n = plan.demonstrations // len(plan.overrides)
    worker = recipe.parts.worker
    if worker.spec.transcribe is None:
        return demonstrations_of(recipe, tokenizer, path.with_suffix(".parquet"), n=n, seed=plan.seed)
    system = ComposedRecipe.named(plan.system, overrides)
    distill(
        Distillation(
            environment=recipe.parts.environment,
            system=system.parts.worker,
            student=Student(worker, PlainRenderer(tokenizer), tokenizer, recipe.limits),
            teacher=lambda messages: Expertise(Noise(skip_stage=0.0)),
            n=n,
            weights=Weights(mistake=Noise.random_weight, read=Noise.observation_weight),
            seed=plan.seed,
            limits=system.limits,
        ),
        path,
    )
    return path / DATA


def texts_of(recipe: ComposedRecipe, seed: int = 0, walks: int = 96) -> Iterator[str]:
    """The language of a recipe's world and worker; see `collect_texts`."""
    environment, worker = recipe.parts.environment, recipe.parts.worker
    return collect_texts(environment.spec, environment.options, ((worker.spec, worker.options),), walks, seed)


def demonstrations_of(
    recipe: ComposedRecipe, tokenizer: Any, path: Path, n: int, noise: Noise | None = None, seed: int = 0
) -> Path:
    """Demonstrations by the expert of a recipe's world through its worker; see `write_demonstrations`."""
    environment, worker = recipe.parts.environment, recipe.parts.worker
    return write_demonstrations(
        environment.spec,
        environment.options,
        worker.spec,
        worker.options,
        tokenizer,
        path=path,
        n=n,
        noise=noise,
        seed=seed,
        limits=recipe.limits,
    )


def _paths(files: Sequence[Path]) -> list[str | Path]:
    return [file.resolve() for file in files]
