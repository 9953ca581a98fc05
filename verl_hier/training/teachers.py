"""On-policy distillation: what a teacher adds to the advantage of each sampled token.

With a teacher T, a token a that the policy p has sampled gets w (log T(a) - log p(a)) beside its credit. Its gradient
is in expectation that of -w KL(p || T) at that place, the reverse KL divergence of the policy from its teacher, which
is estimated from the sampled token alone.

Shapes: N response tokens of all rows one after the other.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from verl_hier.credit import Bools, Floats
from verl_hier.training.ledger import Ledger
from verl_hier.training.options import TeacherOptions


def taught_tokens(ledger: Ledger, roles: Sequence[str]) -> Bools:
    """(N,) whether each token belongs to a turn of these roles; to any turn when there are none."""
    on_turn = ledger.turn >= 0
    if not roles:
        return on_turn
    known = ledger.table.names.get("role", ())
    codes = [code for code, name in enumerate(known) if name in roles]
    role = np.asarray(ledger.table["role"], np.int64)[np.maximum(ledger.turn, 0)]
    found: Bools = on_turn & np.isin(role, codes)
    return found


def distilled(
    advantages: NDArray[np.floating],
    teacher: NDArray[np.floating],
    policy: NDArray[np.floating],
    taught: Bools,
    options: TeacherOptions,
) -> Floats:
    """(N,) advantages with what a teacher adds to them.

    Args:
        advantages: of the tokens, by the estimator.
        teacher: (N,) the teacher's log-probs of the sampled tokens.
        policy: (N,) those of the policy before the update.
        taught: (N,) tokens that the teacher teaches and that are trained.
        options: of the teacher.
    """
    apart = np.clip(np.asarray(teacher, np.float64) - policy, -options.most, options.most)
    return np.where(taught, options.credit * advantages + options.weight * apart, advantages)


def teacher_metrics(
    name: str, teacher: NDArray[np.floating], policy: NDArray[np.floating], taught: Bools
) -> dict[str, float]:
    """The tokens that a teacher has read, and how far the policy is from it: the mean of log p - log T over them, an
    estimate of the reverse KL divergence."""
    count = int(taught.sum())
    found = {f"hier/teacher/{name}/tokens": float(count)}
    if count:
        found[f"hier/teacher/{name}/kl"] = float((np.asarray(policy, np.float64) - teacher)[taught].mean())
    return found
