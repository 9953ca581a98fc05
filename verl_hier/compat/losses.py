"""Policy losses of plugins in verl's own registry."""

from verl_hier.errors import PluginError
from verl_hier.specs import PolicyLossSpec


def register(loss: PolicyLossSpec, plugin: str) -> None:
    """Put one loss under its name; a second call with the same function does nothing.

    verl's decorator overwrites silently, so a clash with one of verl's own losses is refused here.
    """
    from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY, register_policy_loss

    present = POLICY_LOSS_REGISTRY.get(loss.name)
    if present is loss.function:
        return
    if present is not None:
        raise PluginError(
            f"plugin {plugin!r} provides the policy loss {loss.name!r}, which {present.__module__} already registered; "
            f"rename it or disable the plugin with `hier.plugins.{plugin}: false`."
        )
    register_policy_loss(loss.name)(loss.function)
