"""Findings about the architecture of a model: what serves and trains it, and how much memory that takes."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterable, Iterator
from typing import Any

from verl_hier.chat.examined.finding import Finding
from verl_hier.errors import RecipeError, first_line
from verl_hier.host.specs import EngineSpec, RolloutServerSpec

GIB = 2**30
ON_GPUS = "On GPUs take server=vllm or server=sglang."


def skeleton(config: Any) -> Any:
    """The model without weights, on the device `meta`.

    Raises:
        Exception: whatever transformers raises for a config without a causal language model.
    """
    import torch
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config)


def served(model: Any, servers: Iterable[RolloutServerSpec]) -> Iterator[Finding]:
    """What the rollout servers that judge architectures, and vLLM and SGLang, say about this one."""
    config = model.config.get_text_config()
    window = getattr(config, "sliding_window", None) if getattr(config, "use_sliding_window", True) else None
    for server in servers:
        if server.refuses is None:
            continue
        about, name = f"server {server.name}", f"the {'CPU ' * server.on_cpu}server"
        why = server.refuses(model.config, type(model))
        if why:
            yield Finding(about, "note", f"{why} {ON_GPUS}")
        elif window:
            yield Finding(
                about,
                "note",
                f"attention looks at {window} tokens and {name} at whole rows: keep rows below {window} tokens.",
            )
        else:
            yield Finding(about, "ok", f"{name} takes the architecture.")
    names = list(model.config.architectures or [type(model).__name__])
    for package in ("vllm", "sglang"):
        yield _of_server(package, names)


def _of_server(server: str, names: list[str]) -> Finding:
    about = f"server {server}"
    if importlib.util.find_spec(server) is None:
        return Finding(
            about, "note", f"unknown, as {server} is not installed here; look for {names[0]} in its list of models."
        )
    module = {"vllm": "vllm", "sglang": "sglang.srt.models.registry"}[server]
    try:
        supported = set(importlib.import_module(module).ModelRegistry.get_supported_archs())
    except Exception as error:  # such a package may fail to load without its accelerator
        return Finding(about, "note", f"unknown, as {server} cannot be asked here ({first_line(error)}).")
    if supported.intersection(names):
        return Finding(about, "ok", f"the installed {server} lists {names[0]}.")
    return Finding(about, "note", f"the installed {server} does not list {names[0]}; take a version that does.")


def trained(model: Any, engines: Iterable[EngineSpec]) -> Iterator[Finding]:
    """What engines beside verl's own, and adapters, can do."""
    import torch

    for engine in engines:
        about = f"engine {engine.name}"
        try:
            engine.refuses(model.config)
            yield Finding(about, "ok", f"the {engine.name} engine is exact on the layers of this model.")
        except RecipeError as error:
            yield Finding(about, "note", str(error))
    linear = sum(
        part.weight.numel()
        for name, part in model.named_modules()
        if isinstance(part, torch.nn.Linear) and not name.endswith("lm_head")
    )
    grouped = sum(parameter.numel() for parameter in model.parameters() if parameter.dim() > 2)
    sentence = f"adapters on all linear layers reach {linear:,} parameters"
    if grouped:
        sentence += (
            f"; {grouped:,} more lie in tensors of several experts, which `lora.target_modules: all-linear` leaves as "
            "they are"
        )
    yield Finding("adapters", "note" if grouped else "ok", f"{sentence}; the CPU server wants model.lora.merge: true.")


def memory(parameters: int, trained_bytes: int, copy_bytes: int) -> Iterator[Finding]:
    """Memory at each size, with the arithmetic.

    Args:
        parameters: of the model.
        trained_bytes, copy_bytes: bytes for each parameter that is trained, and that is only held.
    """
    states, copy = parameters * trained_bytes, parameters * copy_bytes
    yield Finding(
        "memory, size=cpu",
        "ok",
        f"{parameters:,} parameters × ({trained_bytes} bytes of weights, gradients and Adam + {copy_bytes} of the "
        f"server) = {(states + copy) / GIB:.1f} GiB, and {copy / GIB:.1f} more with a reference; activations on top.",
    )
    for devices in (1, 8):
        yield Finding(
            f"memory, {devices} GPU{'s' * (devices > 1)}",
            "ok",
            f"{parameters:,} × {trained_bytes} bytes / {devices} = {states / devices / GIB:.1f} GiB a device for the "
            "policy; activations and the rollout server on top.",
        )
