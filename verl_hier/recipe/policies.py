"""`hier.policies`: which policy plays which role, and how each of them is trained or served."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from verl_hier.host.constraints import Positive
from verl_hier.rollout.policy import DEFAULT_POLICY

NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")
"""What a policy can be called: its name is part of those of metrics, folders and Ray actors."""
OWN_LINES = (
    *("actor.optim", "actor.clip_ratio", "actor.clip_ratio_low", "actor.clip_ratio_high", "actor.clip_ratio_c"),
    *("actor.grad_clip", "actor.kl_loss_coef", "actor.kl_loss_type", "actor.entropy_coeff", "actor.ppo_epochs"),
)
"""Lines of `actor_rollout_ref` that a policy may have for itself. The values of other lines are made of them nowhere in
verl's configuration, so that a policy's own value reaches all that reads it."""
OF_WORKERS = (
    *("actor.fsdp_config.param_offload", "actor.fsdp_config.optimizer_offload", "rollout.gpu_memory_utilization"),
)
"""Further ones of a policy that has workers of its own."""


@dataclass(frozen=True)
class PolicyOptions:
    """A policy beside the one of `actor_rollout_ref`, which has all roles that no policy here names."""

    roles: tuple[str, ...] = ()
    """Roles of the worker whose turns it generates."""
    train: Literal["full", "adapter", "none"] = "full"
    """`full` trains weights of its own, with an optimiser, a reference and checkpoints of its own; `adapter` a LoRA
    adapter of its own on the weights of `actor_rollout_ref`, whose `model.lora_rank` it has; `none` never changes
    it."""
    model: str | None = None
    """Folder or Hugging Face name of the model that it begins with; null for that of `actor_rollout_ref`. With `url`,
    what the endpoint calls the model; null for the only one that it serves."""
    url: str | None = None
    """Base of an OpenAI-compatible endpoint that plays the roles, such as `http://host:8000/v1`; null for none."""
    time_limit_s: Positive = 120.0
    """Seconds that the endpoint has for one answer; a request is tried three times."""
    actor_rollout_ref: Mapping[str, Any] = field(default_factory=dict)
    """Lines of `actor_rollout_ref` that are other ones for this policy, such as `{actor: {optim: {lr: 5e-7}}}`."""


Declared = Mapping[str, PolicyOptions]


def assigned(policies: Declared) -> dict[str, str]:
    """Role to policy, for the roles that have another policy than the one of `actor_rollout_ref`."""
    return {role: name for name, policy in policies.items() for role in policy.roles}


def played(policies: Declared, roles: Sequence[str], step: int, every: int | None) -> dict[str, str]:
    """Role to policy in a step, in which those that learn may have exchanged their roles; see `assigned`.

    Args:
        policies: declared ones.
        roles: of the worker.
        step: of the trainer; the first one is 1.
        every: steps after which each takes the roles of the next one in the order of the roles, the last one those of
            the first; None for never.
    """
    found = assigned(policies)
    if every is None:
        return found
    owner, able = {role: found.get(role, DEFAULT_POLICY) for role in roles}, trained(policies)
    circle = list(dict.fromkeys(name for name in owner.values() if name in able))
    by = max(step - 1, 0) // every
    taken = {name: circle[(place + by) % len(circle)] for place, name in enumerate(circle)}
    return {role: taken.get(name, name) for role, name in owner.items()}


def learning(policies: Declared) -> list[str]:
    """Names of the policies that learn beside that of `actor_rollout_ref`."""
    return [name for name, policy in policies.items() if policy.train != "none" and name != DEFAULT_POLICY]


def full(policies: Declared) -> list[str]:
    """Names of those among them that have weights and workers of their own."""
    return [name for name in learning(policies) if policies[name].train == "full"]


def lines_of_adapters(policies: Declared) -> dict[str, dict[str, Any]]:
    """Names of the policies with an adapter on the model of `actor_rollout_ref`, and the lines that each has for
    itself."""
    return {name: dict(policy.actor_rollout_ref) for name, policy in policies.items() if policy.train == "adapter"}


def trained(policies: Declared) -> frozenset[str]:
    """Names of all policies that learn."""
    return frozenset({DEFAULT_POLICY, *learning(policies)})


def lines_of(block: Mapping[str, Any], before: str = "") -> list[str]:
    """The dotted lines of a block, without the names of blocks that only hold others."""
    found: list[str] = []
    for key, below in block.items():
        line = f"{before}{key}"
        found += lines_of(below, f"{line}.") if isinstance(below, Mapping) and below else [line]
    return found


def own_lines(policy: PolicyOptions) -> tuple[str, ...]:
    """The lines of `actor_rollout_ref` that a policy may have for itself."""
    return OWN_LINES if policy.train == "adapter" else (*OWN_LINES, *OF_WORKERS)


def is_own(line: str, policy: PolicyOptions) -> bool:
    """Whether a policy may have a line of `actor_rollout_ref` for itself."""
    return any(line == known or line.startswith(f"{known}.") for known in own_lines(policy))
