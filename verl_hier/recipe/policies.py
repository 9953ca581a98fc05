"""`hier.policies`: which policy plays which role, and how each of them is trained or served."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from verl_hier.host.constraints import Positive
from verl_hier.rollout.policy import DEFAULT_POLICY

NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")
"""What a policy can be called: its name is part of those of metrics, folders and Ray actors."""
OWN_LINES = (
    *("actor.optim", "actor.clip_ratio", "actor.clip_ratio_low", "actor.clip_ratio_high", "actor.clip_ratio_c"),
    *("actor.grad_clip", "actor.kl_loss_coef", "actor.kl_loss_type", "actor.entropy_coeff", "actor.ppo_epochs"),
    *("actor.fsdp_config.param_offload", "actor.fsdp_config.optimizer_offload", "rollout.gpu_memory_utilization"),
)
"""Lines of `actor_rollout_ref` that a policy may have for itself. The values of other lines are made of them nowhere in
verl's configuration, so that a policy's own value reaches all that reads it."""


@dataclass(frozen=True)
class PolicyOptions:
    """A policy beside the one of `actor_rollout_ref`, which has all roles that no policy here names."""

    roles: tuple[str, ...] = ()
    """Roles of the worker whose turns it generates."""
    train: Literal["full", "none"] = "full"
    """`full` trains weights of its own, with an optimiser, a reference and checkpoints of its own; `none` never changes
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


def learning(policies: Declared) -> list[str]:
    """Names of the policies that learn beside that of `actor_rollout_ref`."""
    return [name for name, policy in policies.items() if policy.train != "none" and name != DEFAULT_POLICY]


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


def is_own(line: str) -> bool:
    """Whether a policy may have a line of `actor_rollout_ref` for itself."""
    return any(line == known or line.startswith(f"{known}.") for known in OWN_LINES)
