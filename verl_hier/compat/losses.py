"""Policy losses of plugins in verl's own registry."""

from collections.abc import Mapping
from typing import Any

from verl_hier.errors import PluginError
from verl_hier.host.manager import PluginHost
from verl_hier.host.specs import PolicyLossSpec


def register(loss: PolicyLossSpec, plugin: str) -> None:
    """Put one loss under its name; a second call with the same function does nothing.

    verl's decorator overwrites silently, so a clash with one of verl's own losses is refused here.
    """
    from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY, register_policy_loss

    present = POLICY_LOSS_REGISTRY.get(loss.name)
    if present == loss.function:
        return
    if present is not None:
        raise PluginError(
            f"plugin {plugin!r} provides the policy loss {loss.name!r}, which {present.__module__} already registered; "
            f"rename it or disable the plugin with `hier.plugins.{plugin}: false`."
        )
    register_policy_loss(loss.name)(loss.function)


def register_policy_losses(host: PluginHost) -> None:
    """Make the plugins' policy losses known to verl in this process. Idempotent."""
    for name, loss in host.specs("policy_loss").items():
        register(loss, host.provenance("policy_loss", name).plugin)


def worker_with_losses(base: type, enabled: Mapping[str, bool]) -> type:
    """`base`, a worker class of verl, which registers the losses of the enabled plugins before it builds its model.

    The registry is a dictionary of the process and the workers do not see the recipe's `hier` block, so the class
    carries what is enabled (verl/workers/engine_workers.py, `ActorRolloutRefWorker`).
    """
    plugins = dict(enabled)

    class WorkerWithLosses(base):  # type: ignore[misc, valid-type]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            register_policy_losses(PluginHost.load(plugins))
            super().__init__(*args, **kwargs)

    WorkerWithLosses.__name__ = base.__name__
    return WorkerWithLosses
