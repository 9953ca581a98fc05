"""What the adapters of recorded cases share: the types of a case, and arrays in the layout of the recordings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Case = Mapping[str, Any]
Outputs = dict[str, Any]


def on_mask(values: ArrayLike, mask: ArrayLike) -> NDArray[np.float64]:
    """(B,) values on the (B, L) positions of a mask."""
    return np.asarray(values, np.float64)[:, None] * np.asarray(mask, np.float64)


def first_seen(keys: ArrayLike) -> NDArray[np.int64]:
    """Group numbers in the order of their first row."""
    unique, first, inverse = np.unique(np.asarray(keys), return_index=True, return_inverse=True)
    rank = np.empty(len(unique), np.int64)
    rank[np.argsort(first)] = np.arange(len(unique))
    return rank[inverse]


class ActorConfig(dict[str, Any]):
    """The part of verl's actor configuration that a policy loss reads."""

    def __getattr__(self, name: str) -> Any:
        return self[name]
