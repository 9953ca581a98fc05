"""verl's own validation of a composed config, run offline and turned into sentences.

verl validates in its driver before Ray starts (`utils/config.py::validate_config`) and builds dataclasses in its
workers after that; both are done here, so that a bad key stops a run before any process exists. Neither needs verl as a
whole (see `config_classes`), vLLM or SGLang, but for one: with an unmerged LoRA on vLLM, verl asks vLLM which ranks it
supports.
"""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Any

from verl_hier.errors import PluginError, RecipeError
from verl_hier.installed import points_of
from verl_hier.verl_facts.config_classes import config_classes

# Blocks that verl's workers turn into dataclasses by their `_target_`.
_BLOCKS = (
    "actor_rollout_ref.actor",
    "actor_rollout_ref.ref",
    "actor_rollout_ref.rollout",
    "algorithm",
)
_REFERENCE_KEYS = {
    "log_prob_micro_batch_size": "ppo_micro_batch_size",
    "log_prob_micro_batch_size_per_gpu": "ppo_micro_batch_size_per_gpu",
    "log_prob_use_dynamic_bsz": "use_dynamic_bsz",
    "log_prob_max_token_len_per_gpu": "ppo_max_token_len_per_gpu",
}
_POINTS = {"verl_hier", "verl_hier_cpu", "verl_hier_tree"}
"""Our entry points; an installation that is older than the code lacks the latest."""
_MODELS = ("actor_rollout_ref.model", "critic.model")


_SOUND: set[str] = set()
"""Blocks that verl could read, as text: of many recipes that are checked in one process most blocks are equal, and to
build them is most of the time of a check."""


def validate(plain: Mapping[str, Any], reference: bool, critic: bool) -> list[str]:
    """Run verl's checks on a composed config.

    Args:
        plain: the config as plain containers whose interpolations are resolved; it is not changed.
        reference, critic: whether the run has a reference model and a critic.

    Returns:
        Notes on what could not be checked on this machine.

    Raises:
        RecipeError: with verl's own words, when it refuses the config.
    """
    from omegaconf import OmegaConf, open_dict

    config = OmegaConf.create(dict(plain))
    with open_dict(config):
        # Building an HFModelConfig loads the tokenizer, from the network if need be; its fields are checked below.
        config.critic.model.pop("_target_", None)
    notes: list[str] = []
    if _asks_vllm(config):
        import verl  # noqa: F401
    with config_classes(), contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _run_validate_config(config, notes, reference, critic)
        with open_dict(config):
            _as_actor(config.actor_rollout_ref)
        for line in _BLOCKS:
            _build(config, line)
        for line in _MODELS:
            _merge_model(config, line)
    return notes


def _asks_vllm(config: Any) -> bool:
    model, rollout = config.actor_rollout_ref.model, config.actor_rollout_ref.rollout
    return bool(rollout.name == "vllm" and (model.get("lora_rank") or model.get("lora", {}).get("rank")))


def require_registration() -> None:
    """Refuse to go on when verl cannot load our entry points: verl swallows that, our entry points keep it.

    They are run without verl, whose import takes ten seconds; the run imports it soon enough.

    Raises:
        PluginError: with what an entry point raised, or that there is none.
    """
    points = [point for point in points_of("verl.plugins") if point.value.startswith("verl_hier.")]
    missing = sorted(_POINTS - {point.name for point in points})
    if missing:
        raise PluginError(
            f"{', '.join(missing)} of verl-hier is not among the installed plugins of verl (entry-point group "
            "verl.plugins), so that verl would not load it; reinstall verl-hier (`pip install -e .` in a checkout)."
        )
    for point in points:
        if find_spec(point.module) is None:
            continue  # a part of ours that somebody has left out; what needs it says so
        failure: BaseException | None = point.load().FAILURE
        if failure is not None:
            raise PluginError(f"verl-hier could not register itself with verl: {_words(failure)}.") from failure


def _run_validate_config(config: Any, notes: list[str], reference: bool, critic: bool) -> None:
    from verl.utils.config import validate_config

    try:
        validate_config(config, reference, critic)
    except ImportError as error:
        notes.append(f"verl could not check everything here: {_words(error)}.")
    except Exception as error:
        raise RecipeError(f"verl refuses this recipe: {_words(error)}") from error


def _as_actor(block: Any) -> None:
    """Rename the reference's keys as verl's worker does before it reads them (`workers/engine_workers.py:545`)."""
    block.ref.ppo_mini_batch_size = block.actor.ppo_mini_batch_size
    for theirs, ours in _REFERENCE_KEYS.items():
        if theirs in block.ref:
            block.ref[ours] = block.ref.pop(theirs)


def _build(config: Any, line: str) -> None:
    from omegaconf import OmegaConf
    from verl.utils.config import omega_conf_to_dataclass

    _read(line, OmegaConf.to_container(OmegaConf.select(config, line)), omega_conf_to_dataclass)


def _merge_model(config: Any, line: str) -> None:
    from omegaconf import OmegaConf
    from verl.workers.config import HFModelConfig

    block = OmegaConf.to_container(OmegaConf.select(config, line))
    assert isinstance(block, dict)
    block.pop("_target_", None)
    block = {key: value for key, value in block.items() if not isinstance(value, dict) or "_target_" not in value}
    _read(line, block, lambda model: OmegaConf.merge(OmegaConf.structured(HFModelConfig), model))


def _read(line: str, block: Any, reads: Callable[[Any], object]) -> None:
    """Let verl read a block, unless it has read an equal one in this process."""
    from omegaconf import OmegaConf

    text = f"{line} {block!r}"
    if text in _SOUND:
        return
    try:
        reads(OmegaConf.create(block))
    except Exception as error:
        raise RecipeError(f"{line}: verl cannot read this block: {_words(error)}") from error
    _SOUND.add(text)


def _words(error: BaseException) -> str:
    """The innermost message, in one line: Hydra wraps verl's assertion in a page of context."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
