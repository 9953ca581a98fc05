"""The whole cold start of recipes on one environment: model, demonstrations for each recipe, supervised training."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from verl_hier.coldstart.demonstrations import write_demonstrations
from verl_hier.coldstart.distill import DATA, Distillation, ExpertTeacher, Student, Weights, distill
from verl_hier.coldstart.expert_policy import Noise
from verl_hier.coldstart.sft import run_sft
from verl_hier.coldstart.tiny import build_tiny
from verl_hier.coldstart.vocabulary import collect_texts
from verl_hier.recipe.composed import ComposedRecipe
from verl_hier.rollout.plain_renderer import PlainRenderer

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ColdStart:
    """How a policy is prepared for reinforcement learning.

    Attributes:
        recipes: one model learns the formats of the workers of all these recipes.
        overrides: variants of the tasks, each a list of Hydra overrides; demonstrations are divided among them.
        demonstrations: number of episodes, the same tasks for each recipe.
        steps: optimiser steps of the supervised training.
        seed: seed of weights, demonstrations and the order of rows.
        system: recipe that the expert plays in place of a recipe whose worker has `transcribe`; its episodes are
            distilled for that worker.
    """

    recipes: tuple[str, ...]
    overrides: tuple[tuple[str, ...], ...] = ((),)
    demonstrations: int = 480
    steps: int = 1300
    seed: int = 0
    system: str = "himac_alfworld"


def cold_start(plan: ColdStart, folder: Path, report: Callable[[str], None] = logger.info) -> Path:
    """The folder of the trained model; the result of an equal call with the same `folder` is used again.

    Args:
        plan: what to make.
        folder: gets `tiny/`, `demonstrations_*`, `sft/` and the plan.
        report: called with a sentence on each step.
    """
    from verl_hier.compat.tokenizer import load_tokenizer

    key = hashlib.sha256(json.dumps(asdict(plan), sort_keys=True).encode()).hexdigest()
    model, marker = folder / "sft" / "model", folder / "plan.sha256"
    if model.is_dir() and marker.is_file() and marker.read_text() == key:
        report(f"the cold start exists already: {model}")
        return model
    variants = [
        (ComposedRecipe.named(recipe, overrides), overrides) for recipe in plan.recipes for overrides in plan.overrides
    ]
    report("building a model of 200k parameters and its vocabulary")
    texts = [text for recipe, _ in variants for text in texts_of(recipe, plan.seed)]
    tiny = build_tiny(folder / "tiny", texts, seed=plan.seed)
    tokenizer = load_tokenizer(tiny)
    report(f"writing {plan.demonstrations} demonstrations by the environment's expert")
    files = [
        demonstrate(plan, recipe, overrides, tokenizer, folder / f"demonstrations_{number}")
        for number, (recipe, overrides) in enumerate(variants)
    ]
    report(f"{plan.steps} supervised steps by verl's own SFT trainer (log: {folder / 'sft' / 'sft.log'})")
    run_sft(tiny, [file.resolve() for file in files], folder / "sft", steps=plan.steps, seed=plan.seed)
    marker.write_text(key)
    return model


def demonstrate(plan: ColdStart, recipe: ComposedRecipe, overrides: Sequence[str], tokenizer: Any, path: Path) -> Path:
    """A file of rows for one recipe: demonstrations, or distilled episodes if its worker has `transcribe`.

    Args:
        plan: the number of demonstrations, their seed, and the system that is distilled.
        recipe: the recipe whose worker is to be trained.
        overrides: the overrides of `recipe`; they apply to `plan.system` too.
        tokenizer: the model's tokenizer.
        path: the file without its suffix.
    """
    n = plan.demonstrations // len(plan.overrides)
    environment, worker = recipe.parts.environment, recipe.parts.worker
    if worker.spec.transcribe is None:
        file = path.with_suffix(".parquet")
        return write_demonstrations(environment, worker, tokenizer, file, n, seed=plan.seed, limits=recipe.limits)
    system = ComposedRecipe.named(plan.system, overrides)
    distill(
        Distillation(
            environment=environment,
            system=system.parts.worker,
            student=Student(worker, PlainRenderer(tokenizer), tokenizer, recipe.limits),
            teacher=lambda messages: ExpertTeacher(Noise(skip_stage=0.0)),
            n=n,
            weights=Weights(invalid_action=Noise.random_weight, observation=Noise.observation_weight),
            seed=plan.seed,
            limits=system.limits,
        ),
        path,
    )
    return path / DATA


def texts_of(recipe: ComposedRecipe, seed: int = 0, walks: int = 96) -> Iterator[str]:
    """The texts of a recipe's environment and worker; see `collect_texts`."""
    return collect_texts(recipe.parts.environment, [recipe.parts.worker], walks, seed)
