"""The policies of `hier.policies` in a rollout worker: on rollout servers of the run, in this process, or elsewhere."""

from __future__ import annotations

from typing import Any

from verl_hier.compat.servers.in_process import in_process_policy
from verl_hier.compat.servers.policy import ServerPolicy
from verl_hier.recipe.policies import Declared
from verl_hier.recipe.runner import Beside
from verl_hier.rollout import Policy, Renderer
from verl_hier.rollout.policy import DEFAULT_POLICY
from verl_hier.served.client import ChatClient
from verl_hier.served.policy import Messages, ServedPolicy

OF_CLIENT = "policies_of_run"
"""Attribute of verl's client of the rollout servers: the clients of the other policies that learn, by name."""
_ALWAYS = 2**31
"""Requests without an answer after which an endpoint that has answered is given up: each costs its episode alone."""


class NamedPolicies:
    """Makes the policies of one task; models and connections are those of the rollout worker.

    Args:
        config: the whole composed verl configuration.
        declared: `hier.policies`.
        client: the trainer's client of the rollout servers, with those of other policies in `OF_CLIENT`.

    Raises:
        RecipeError: when a saved model cannot be loaded.
        HierError: when the package of endpoints is not installed, or an address is none.
    """

    def __init__(self, config: Any, declared: Declared, client: Any) -> None:
        rollout, clients = config.actor_rollout_ref.rollout, getattr(client, OF_CLIENT, {})
        self._fixed: dict[str, Policy] = {}
        self._endpoints: dict[str, ChatClient] = {}
        for name, options in declared.items():
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
                path = options.model or config.actor_rollout_ref.model.path
                self._fixed[name] = in_process_policy(config, path)
            else:
                self._fixed[name] = ServerPolicy(clients[name], rollout.name)

    def __call__(self) -> Beside:
        """The policies of one task, each endpoint with messages of its own."""
        policies: dict[str, Policy] = dict(self._fixed)
        renderers: dict[str, Renderer] = {}
        for name, client in self._endpoints.items():
            renderers[name] = messages = Messages()
            policies[name] = ServedPolicy(client, messages)
        return Beside(policies, renderers)
