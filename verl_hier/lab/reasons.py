"""Why a method does not learn in a world where it was tried: by design, as its credit there shows."""

from __future__ import annotations

from typing import Any

_OWN = "credits a turn with the reward of that turn alone, and here the reward comes with a later one"
_AGENT = "credits an agent with the rewards of its own turns, and here those of another agent earn them"
_BRANCH = "gives credit where a path branches, and most turns that decide here come after the last branch"
_FIRST = "keeps the episodes that end first, and here those are the ones that stop at once"
_REASONS: dict[str, str] = {
    "grpo@overprovision": _FIRST,
    "treeps_rag@treeps_rag": _FIRST,
    "sharp@sharp": "most calls only measure, so that this budget has few steps; with 25,000 turns it learns",
    "ccpo@ccpo+ccpo_history": "half of the calls only measure, so that this budget has few steps; with 25,000 turns it "
    "learns",
    "ccpo": "knows only right and wrong: a return of 0.5 or less is wrong, which nearly all are at the beginning; with "
    "`right_above: 0.1` it learns the first of two subgoals and sees no more",
    "himac@nested+alternating": "stays at the first of two subgoals, as `himac` nearly does without it, with 25,000 "
    "turns too; what keeps it there is not understood",
    "at_grpo": _OWN,
    "epo_explicit": f"{_OWN}, unless a discount is set",
    "dual_loop": "scores a plan by the rewards under it alone: an earlier plan has no part in what a later one earns, "
    "and where one agent acts each turn is a plan",
    "mars": _AGENT,
    "hierarchical_grpo": _AGENT,
    "mars2": "scores a segment by the rewards of its own turns, and here the last segment earns them",
    "rtmc": "knows an action by the state that it leads to, and here all actions lead to the same one",
    "igpo": "credits a last turn with the return and all others with what the expectation grows by, so that a turn "
    "that may end the episode by chance has gains without losses",
    "spo": _BRANCH,
    "treerpo": _BRANCH,
    "tree_diff": "divides a turn's score by the root of its leaves and compares all turns of a task, so that a shared "
    "turn looks worse than its leaves, whatever it did",
}
HERE: dict[tuple[str, str], tuple[str, dict[str, Any]]] = {
    ("hgpo", "early_end"): (
        "discounts by 0.95 a turn and compares turns of equal states alone, so that to stop looks better than to go on "
        "while later turns are played at random; with `gamma: 1.0` it learns",
        {"gamma": 1.0},
    ),
    ("mars", "early_end"): (
        "subtracts the mean of all turns' rewards from each, so that every further turn is a loss; with "
        "`reward_norm: none` and without `whiten_rewards` it learns",
        {"reward_norm": "none", "whiten_rewards": False},
    ),
    ("spa_rl_outcome", "horizon"): (
        "pays 0.5 for every turn whose action is understood, so that to walk on earns more than to arrive; with "
        "`grounded_weight: 0` it learns",
        {"grounded_weight": 0.0},
    ),
}
"""Reasons that hold in one world alone, with the options under which the method learns there, which shows that they are
right."""

_JUDGE = "a judge reads the text of a turn, and a turn has no text here"
NOT_FED: dict[str, str] = {
    "arise": "skills are texts that a manager writes and finds again",
    "sage": "skills are functions that an agent defines and calls again",
    "comas": _JUDGE,
    "gdro": "weighs classes of tasks by how hard they are, and a world is one task",
    "hbpo": "rewards short answers, and every action is one token",
    "hrpo": "scores the actions of somebody who builds a graph of agents",
    "istar": "a second model is trained to reward each turn",
    "mae": _JUDGE,
    "ppr": _JUDGE,
    "rlvmr": "rewards tags in the text of a turn",
    "sepo": "agents rate each other in words",
    "spa_rl": "a trained head predicts what each turn adds; the released form, `spa_rl_outcome`, is in the matrix",
    "wideseek_r1": "punishes faults in the text of answers and calls",
}
"""Why an estimator has no world."""
NOT_RUN: dict[str, str] = {
    "opponents": "chooses past checkpoints to play against, and no world is a game of two sides",
    "boad": "chooses the sub-agents of a team, and the agents of a world are given",
    "gdro": "weighs classes of tasks by how hard they are, and a world is one task",
    "question_pool": "keeps the questions that a proposer writes in words",
    "skill_library": "keeps skills, which a manager writes in words",
}
"""Why a schedule is not run."""


def reason(method: str, world: str) -> str | None:
    """The reason, or None where none is known."""
    why, _ = HERE.get((method, world), (None, {}))
    return why or _REASONS.get(method) or _REASONS.get(method.partition("@")[0])
