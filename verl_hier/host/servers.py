"""What the rollout server of a recipe can do, by the specs that plugins have registered."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from verl_hier.errors import RecipeError
from verl_hier.host.manager import PluginHost
from verl_hier.host.specs import RolloutServerSpec

TOP_LOGPROBS = "_topk"
"""Ending of the name of a server that is another one which also returns the log-probs of the likeliest tokens."""


def rollout_server(host: PluginHost, name: str) -> RolloutServerSpec:
    """The spec of a server; for an unknown name with the ending `TOP_LOGPROBS` that of the server it extends."""
    known = host.specs("rollout_server").get(name)
    if known is None and name.endswith(TOP_LOGPROBS):
        known = replace(rollout_server(host, name.removesuffix(TOP_LOGPROBS)), name=name, top_logprobs=True)
    return known or RolloutServerSpec(name)


def keeps_adapters(server: RolloutServerSpec, model: Mapping[str, Any]) -> bool:
    """Whether a server answers each request with the adapter of its policy, rather than having that merged.

    Args:
        server: the server.
        model: `actor_rollout_ref.model` of a recipe.
    """
    lora = model.get("lora") or {}
    return server.adapters and bool(lora.get("rank") or model.get("lora_rank")) and not lora.get("merge")


def servers_with(host: PluginHost, ability: str) -> str:
    """The names of the servers that have an ability, for a sentence: `servers_with(host, "prompt_scores")`."""
    return ", ".join(f"`{name}`" for name, server in host.specs("rollout_server").items() if getattr(server, ability))


def opening_server(host: PluginHost) -> RolloutServerSpec | None:
    """The server that loads saved models in this process; None where no plugin has one."""
    return next((server for server in host.specs("rollout_server").values() if server.opens is not None), None)


def loader_of(host: PluginHost, config: Any) -> Callable[[str | os.PathLike[str]], Any]:
    """Loads saved models as policies in this process, by the rollout server that can.

    Args:
        host: the enabled plugins.
        config: the whole composed verl configuration; lengths, data type and options of the server are its own.

    Returns:
        a function of a folder or Hugging Face name, which returns a `rollout.Policy`, and raises `RecipeError` when no
        server can or the model cannot be loaded.
    """

    def load(model: str | os.PathLike[str]) -> Any:
        server = opening_server(host)
        if server is not None and server.opens is not None:
            return server.opens(server, config, model)
        raise RecipeError(
            f"hier.plugins: {str(model)!r} is to be loaded in this process, and no enabled plugin has a rollout server "
            "that does so; the built-in one is `transformers`."
        )

    return load
