"""Why a method does not learn in a world where it was tried: by design, as its credit there shows."""

from __future__ import annotations

_OWN = "credits a turn with the reward of that turn alone, and here the reward comes with a later one"
_AGENT = "credits an agent with the rewards of its own turns, and here those of another agent earn them"
_BRANCH = "gives credit where a path branches, and most turns that decide here come after the last branch"
_REASONS: dict[str, str] = {
    "at_grpo": _OWN,
    "epo_explicit": f"{_OWN}, unless a discount is set",
    "dual_loop": "scores a plan by the rewards under it alone: an earlier plan has no part in what a later one earns, "
    "and where one agent acts each turn is a plan",
    "mars": _AGENT,
    "hierarchical_grpo": _AGENT,
    "mars2": "scores a segment by the rewards of its own turns, and here the last segment earns them",
    "rtmc": "knows an action by the state that it leads to, and here all actions lead to the same one",
    "spo": _BRANCH,
    "treerpo": _BRANCH,
    "tree_diff": "divides a turn's score by the root of its leaves and compares all turns of a task, so that a shared "
    "turn looks worse than its leaves, whatever it did",
}
_UNKNOWN = {("mars", "early_end")}
"""Where one agent acts, so that the method's reason does not hold."""


def reason(method: str, world: str) -> str | None:
    """The reason, or None where none is known."""
    return None if (method, world) in _UNKNOWN else _REASONS.get(method.partition("@")[0])
