"""Whether a recipe runs on a Ray cluster that is there already, or starts a Ray of its own."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

LOCAL = "local"
"""The address by which `ray.init` starts a Ray of its own, whatever else runs on the machine."""


def joins_cluster(config: Mapping[str, Any]) -> bool:
    """Whether a composed recipe, a `DictConfig` or plain containers, joins a Ray cluster.

    It does so by `ray_kwargs.ray_init.address`, or by the environment variable `RAY_ADDRESS` when that says nothing.
    """
    block = (config.get("ray_kwargs") or {}).get("ray_init") or {}
    return (block.get("address") or os.environ.get("RAY_ADDRESS") or LOCAL) != LOCAL
