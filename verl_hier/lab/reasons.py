"""Why a method does not learn in a world where it was tried: by design, not by a fault."""

from __future__ import annotations

_OWN = "credits a turn with the reward of that turn alone, and here the reward comes with a later one"
_BRANCH = "credits only turns that have siblings; the shape branches after the first two turns, and later ones decide"
_REASONS: dict[str, str] = {
    "at_grpo": _OWN,
    "epo_explicit": f"{_OWN}; its discount is 0 unless it is set",
    "dual_loop": f"compares the executions of a plan by their own rewards: it {_OWN}",
    "mars": "credits an agent with the rewards of its own turns, and here the last turn of another agent earns them",
    "hierarchical_grpo": "credits an agent with the rewards of its own turns, and here another agent's turn earns them",
    "mars2": "credits an agent with the rewards of its own turns, and here another agent's turn earns them",
    "rtmc": "knows an action by the state that it leads to, and here both actions lead to the same one",
    "spo": _BRANCH,
    "treerpo": _BRANCH,
    "tree_diff": "credits a turn with its difference from the turn before it, which a first turn has not",
}


def reason(method: str, world: str) -> str | None:
    """The reason, or None where none is known."""
    if (method, world) in _UNKNOWN:
        return None
    return _REASONS.get(method.partition("@")[0])


_UNKNOWN = {("mars", "early_end"), ("tree_diff", "early_end"), ("dual_loop", "early_end")}
"""Where the policy settles on stopping at once and the method's reason does not cover it."""
