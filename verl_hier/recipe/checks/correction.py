"""Settings of verl's rollout correction and of adapters that verl refuses in the first step, or not at all."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from verl_hier.errors import RecipeError, did_you_mean
from verl_hier.recipe.checks.rule import rule, value
from verl_hier.recipe.composed import ComposedRecipe

LINE = "algorithm.rollout_correction"
LEVELS = ("token", "sequence")
"""What `rollout_is` weighs; `rollout_corr_helper.py::compute_rollout_correction_weights`."""
CRITERIA = (
    *(f"{level}_k{number}" for level in ("token", "seq_sum", "seq_mean") for number in (1, 2, 3)),
    *("seq_max_k2", "seq_max_k3"),
)
"""What `rollout_rs` rejects by; `rollout_corr_helper.py::SUPPORTED_ROLLOUT_RS_OPTIONS`."""
LOSSES = ("ppo_clip", "reinforce")
"""What `loss_type` is with `bypass_mode`; `core_algos.py`."""


@rule
def check_correction(recipe: ComposedRecipe) -> None:
    """Refuse settings of verl's rollout correction that its first step would refuse."""
    settings = value(recipe.config, LINE)
    if not isinstance(settings, Mapping):
        return
    level = settings.get("rollout_is")
    if level is not None:
        _require(f"{LINE}.rollout_is", level, LEVELS)
        # Without one verl weighs nothing.
        _bounds(f"{LINE}.rollout_is_threshold", settings.get("rollout_is_threshold"), lower=True)
    if settings.get("rollout_rs") is not None:
        _check_rejection(settings["rollout_rs"], settings.get("rollout_rs_threshold"))
    elif settings.get("rollout_rs_threshold") is not None:
        raise RecipeError(
            f"{LINE}.rollout_rs_threshold: without `rollout_rs` nothing is rejected by it; set rollout_rs, such as "
            "token_k1, or remove it."
        )
    _require(f"{LINE}.loss_type", settings.get("loss_type", LOSSES[0]), LOSSES)


def _check_rejection(criteria: Any, thresholds: Any) -> None:
    line = f"{LINE}.rollout_rs"
    named = [each.strip() for each in criteria.split(",") if each.strip()] if isinstance(criteria, str) else []
    if not named:
        raise RecipeError(f"{line}: {criteria!r:.60} names no criterion; it takes some of {', '.join(CRITERIA)}.")
    for criterion in named:
        _require(line, criterion, CRITERIA)
    named, line = list(dict.fromkeys(named)), f"{LINE}.rollout_rs_threshold"
    if thresholds is None:
        raise RecipeError(f"{line}: rejection by {', '.join(named)} needs a threshold, such as 2.0; add it.")
    given = [each.strip() for each in str(thresholds).split(",") if each.strip()]
    if (
        isinstance(thresholds, bool)
        or not isinstance(thresholds, str | int | float)
        or len(given) not in (1, len(named))
    ):
        raise RecipeError(
            f"{line}: expected one threshold for all, or {len(named)} with commas between them, got {thresholds!r:.60}."
        )
    for criterion, threshold in zip(named, given * len(named) if len(given) == 1 else given, strict=True):
        _bounds(line, threshold, lower=criterion.endswith("k1"))


def _bounds(line: str, given: Any, lower: bool) -> None:
    """One positive number, or with `lower` also `low_high`."""
    bounds = str(given).strip().split("_", 1) if lower else [str(given).strip()]
    numbers = [] if isinstance(given, bool) else [_number(each) for each in bounds]
    if not numbers or not all(each > 0 for each in numbers) or numbers != sorted(numbers):
        kinds = "a number above 0, or two as `low_high`, such as 0.5_2.0" if lower else "a number above 0"
        raise RecipeError(f"{line}: expected {kinds}, got {given!r:.60}.")


def _number(text: str) -> float:
    try:
        found = math.nan if "_" in text else float(text)  # to Python 0.5_2 is 0.52
    except ValueError:
        return math.nan
    return found if math.isfinite(found) else math.nan


def _require(line: str, given: Any, known: tuple[str, ...]) -> None:
    if given not in known:
        raise RecipeError(f"{line}: {given!r:.60} is not one of {', '.join(known)}{did_you_mean(given, known)}.")


@rule
def check_adapter(recipe: ComposedRecipe) -> None:
    """Refuse an adapter that the rollout server cannot take from the trainer, which would end the first transfer of
    weights."""
    model = recipe.config["actor_rollout_ref"]["model"]
    lora = model.get("lora") or {}
    rank = lora.get("rank") or model.get("lora_rank") or 0
    server = recipe.server
    if not rank > 0 or lora.get("merge"):
        return
    if server.opens and not server.adapters:
        raise RecipeError(
            f"actor_rollout_ref.model.lora_rank: the rollout server {server.name!r} serves merged weights alone; set "
            "actor_rollout_ref.model.lora.merge: true."
        )
    if server.adapters and value(recipe.config, "trainer.v1.trainer_mode") == "hier_separate_async":
        raise RecipeError(
            "actor_rollout_ref.model.lora_rank: the rollout nodes of hier_separate_async are sent whole weights; set "
            "actor_rollout_ref.model.lora.merge: true."
        )
