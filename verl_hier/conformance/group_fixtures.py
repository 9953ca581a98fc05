"""Adapters of the fixtures of group-relative methods: fixture fields to turn-table columns, one function a method."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from verl_hier.conformance.registry import estimator
from verl_hier.conformance.tables import make_table
from verl_hier.credit.estimate import estimate
from verl_hier.trajectory.table import TurnTable

Case = Mapping[str, Any]
Outputs = dict[str, Any]


def run(name: str, table: TurnTable, **options: Any) -> NDArray[np.float64]:
    """Values of the plugin `name` on a table, with options given by name over its defaults."""
    spec = estimator(name)
    return np.asarray(estimate(spec, table, spec.options(**options)).values)


def on_mask(values: ArrayLike, mask: ArrayLike) -> NDArray[np.float64]:
    """(B,) values on the (B, L) positions of a mask."""
    return np.asarray(values, np.float64)[:, None] * np.asarray(mask, np.float64)


def grpo(case: Case) -> Outputs:
    """One row an episode of one turn."""
    table = make_table({"group": case["index"], "reward": case["score"]})
    scale = "sample" if case["norm_by_std"] else "none"
    return {"adv": on_mask(run("grpo", table, scale=scale, eps=case["epsilon"]), case["response_mask"])}


ADAPTERS: dict[str, Callable[[Case], Outputs]] = {
    "grpo": grpo,
}
