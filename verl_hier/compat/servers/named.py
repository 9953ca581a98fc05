"""The policies of `hier.policies` in a rollout worker: on rollout servers of the run, in this process, or elsewhere."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from verl_hier.errors import HierError
from verl_hier.recipe.composed import ComposedRecipe
from verl_hier.recipe.policies import Declared, learning
from verl_hier.recipe.runner import Beside
from verl_hier.rollout import Policy, Renderer
from verl_hier.rollout.policy import DEFAULT_POLICY
from verl_hier.served.client import ChatClient
from verl_hier.served.policy import Messages, ServedPolicy
from verl_hier.served.rollout_server import ServerPolicy

OF_CLIENT = "policies_of_run"
"""Attribute of verl's client of the rollout servers: the clients of the other policies that learn, by name."""
_ALWAYS = 2**31
"""Requests without an answer after which an endpoint that has answered is given up: each costs its episode alone."""


def learned_beside(model: Path, declared: Declared) -> dict[str, Path]:
    """The models of the policies that learned beside one, from the same checkpoint.

    Args:
        model: of the policy of `actor_rollout_ref`: `global_step_N/actor/huggingface` or the `model` of a run; another
            folder has none.
        declared: `hier.policies`.

    Raises:
        HierError: when the checkpoint has some of them only.
    """
    if model.parent.name == "actor":
        places = {name: model.parents[1] / "policies" / name / "actor" / model.name for name in learning(declared)}
    else:
        places = {name: model.parent / "policies" / name for name in learning(declared)}
    found = {name: place for name, place in places.items() if place.is_dir()}
    missing = sorted(places.keys() - found.keys())
    if found and missing:
        raise HierError(f"hier.policies.{missing[0]}: there is no model of it at {places[missing[0]]}.")
    return found


class NamedPolicies:
    """Makes the policies of one task; models and connections are those of the rollout worker.

    Args:
        recipe: the recipe.
        load: loads the model of a folder or name.
        client: the trainer's client of the rollout servers, with those of other policies in `OF_CLIENT`; None where
            nothing is trained.
        learned: the models of policies that have learned, where nothing is trained. One that is not among them is
            none of the task's, so that its roles are played as all others are.

    Raises:
        RecipeError: when a saved model cannot be loaded.
        HierError: when the package of endpoints is not installed, or an address is none.
    """

    def __init__(
        self,
        recipe: ComposedRecipe,
        load: Callable[[str | os.PathLike[str]], Policy],
        client: Any = None,
        learned: Mapping[str, Path] | None = None,
    ) -> None:
        clients = getattr(client, OF_CLIENT, {})
        self._fixed: dict[str, Policy] = {}
        self._endpoints: dict[str, ChatClient] = {}
        for name, options in recipe.hier.policies.items():
            if name == DEFAULT_POLICY:
                continue
            if options.url is not None:
                self._endpoints[name] = ChatClient(
                    options.url,
                    options.model or "",
                    options.time_limit_s,
                    option=f"hier.policies.{name}.url: the endpoint",
                    most_unheard=_ALWAYS,
                )
            elif options.train == "none":
                self._fixed[name] = load(options.model or recipe.config.actor_rollout_ref.model.path)
            elif name in clients:
                self._fixed[name] = ServerPolicy(clients[name], recipe.server)
            elif learned is not None and name in learned:
                self._fixed[name] = load(learned[name])

    def __call__(self) -> Beside:
        """The policies of one task, each endpoint with messages of its own."""
        policies: dict[str, Policy] = dict(self._fixed)
        renderers: dict[str, Renderer] = {}
        for name, client in self._endpoints.items():
            renderers[name] = messages = Messages()
            policies[name] = ServedPolicy(client, messages)
        return Beside(policies, renderers)
