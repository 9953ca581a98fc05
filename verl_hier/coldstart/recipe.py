"""The whole cold start of recipes on one world: model, demonstrations in each recipe's format, supervised training."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from verl_hier.coldstart.demonstrations import write_demonstrations
from verl_hier.coldstart.distill import DATA, Distillation, Expertise, Student, Weights, distill
from verl_hier.coldstart.sft import run_sft
from verl_hier.coldstart.speakers import Noise
from verl_hier.coldstart.tiny import build_tiny
from verl_hier.coldstart.vocabulary import collect_texts
from verl_hier.config import HierConfig
from verl_hier.plugins import Parts, resolve
from verl_hier.recipes import compose
from verl_hier.rollout.render import PlainRenderer
from verl_hier.rollout.rollout import Limits

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
    system: str = "himac_alfworld_cpu"


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
    variants = [(recipe, overrides) for recipe in plan.recipes for overrides in plan.overrides]
    report("building a model of 200k parameters and its vocabulary")
    texts = [text for recipe, overrides in variants for text in _texts(parts_of(recipe, overrides)[1], plan.seed)]
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


def demonstrate(plan: ColdStart, recipe: str, overrides: Sequence[str], tokenizer: Any, path: Path) -> Path:
    """A file of rows in one recipe's format: the expert's own, or distilled where its worker tells what others did.

    Args:
        plan: how many, from which seed, and what is distilled.
        recipe: whose worker speaks.
        overrides: of the recipe, and of `plan.system`.
        tokenizer: the model's.
        path: where, without an ending.
    """
    hier, parts = parts_of(recipe, overrides)
    n = plan.demonstrations // len(plan.overrides)
    if parts.worker.spec.tell is None:
        return write_demonstrations(
            parts.environment.spec,
            parts.environment.options,
            parts.worker.spec,
            parts.worker.options,
            tokenizer,
            path=path.with_suffix(".parquet"),
            n=n,
            seed=plan.seed,
            limits=limits_of(hier),
        )
    system, played = parts_of(plan.system, overrides)
    distill(
        Distillation(
            environment=parts.environment,
            system=played.worker,
            student=Student(parts.worker, PlainRenderer(tokenizer), tokenizer, trained_limits(recipe, overrides)),
            teacher=lambda messages: Expertise(Noise(skip_stage=0.0)),
            n=n,
            weights=Weights(mistake=Noise.random_weight, read=Noise.observation_weight),
            seed=plan.seed,
            limits=limits_of(system),
        ),
        path,
    )
    return path / DATA


def parts_of(recipe: str, overrides: Sequence[str] = ()) -> tuple[HierConfig, Parts]:
    """The hier block of a recipe and its five parts, built."""
    hier = _hier(compose(recipe, overrides))
    return hier, resolve(hier)


def limits_of(hier: HierConfig) -> Limits:
    """Limits of an episode as the recipe has them."""
    rollout = hier.rollout
    return Limits(rollout.max_turns, rollout.max_tokens_per_turn, rollout.context_tokens or Limits().context_tokens)


def trained_limits(recipe: str, overrides: Sequence[str] = ()) -> Limits:
    """Limits of an episode that is to be trained on: where the recipe leaves contexts to verl's lengths, these."""
    config = compose(recipe, overrides)
    hier = _hier(config)
    room = hier.rollout.context_tokens or config.data.max_prompt_length + config.data.max_response_length
    return replace(limits_of(hier), context_tokens=room)


def _hier(config: DictConfig) -> HierConfig:
    return HierConfig.of({"hier": OmegaConf.to_container(config.hier, resolve=True)})


def _texts(parts: Parts, seed: int) -> list[str]:
    workers = ((parts.worker.spec, parts.worker.options),)
    return list(collect_texts(parts.environment.spec, parts.environment.options, workers, seed=seed))


def _paths(files: Sequence[Path]) -> list[str | Path]:
    return [file.resolve() for file in files]
