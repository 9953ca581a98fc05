"""What an estimator returns: credit per turn, per step or per token, and optional weights of the loss."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray


@dataclass
class Credit:
    """Advantages, and how they are to be used.

    Attributes:
        values: float array of length T (per="turn"), S (per="step": a shared turn may differ by episode) or
            N (per="token").
        per: which of the three.
        weight: optional non-negative loss weight of each turn (T,), multiplied into the policy loss; None means 1.
            A turn with weight 0 is not trained.
        returns: optional critic targets in the layout of `values`.
        targets: what each head of the critic learns (`hier.value_heads`), by its name: (T,), or (N,) for a head that
            reads every token; NaN where it learns nothing.
        tokens: optional (N,) bool, the action tokens that are trained at all: the others leave the policy loss with its
            KL and entropy terms, and the loss of the critic. None keeps all.
        factor: optional factor of the credit on each action token (N,), for credit per turn or step that differs from
            token to token; None means 1.
    """

    values: NDArray[Any]
    per: Literal["turn", "step", "token"] = "turn"
    weight: NDArray[Any] | None = None
    returns: NDArray[Any] | None = None
    tokens: NDArray[Any] | None = None
    factor: NDArray[Any] | None = None
    targets: Mapping[str, NDArray[Any]] = field(default_factory=dict)

    @classmethod
    def of(cls, result: Credit | NDArray[Any]) -> Credit:
        """An estimator may return a bare array: one number a turn."""
        return result if isinstance(result, Credit) else cls(np.asarray(result, dtype=np.float64))
