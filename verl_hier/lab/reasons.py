"""Why a method does not learn, or only in part, in a world where it was tried: by design, as its credit there shows.

For each cause there is a test in which a method learns once this one thing is taken away.
"""

from __future__ import annotations

BUDGET = "budget"
"""The cause that more turns take away, as `study.stored(part="longer")` shows of each cell that has it."""
CAUSES: dict[str, str] = {
    BUDGET: "many of its calls only measure or are given up, so that this budget has few steps; with 25,000 turns it "
    "learns",
    "own reward": "credits a turn with the reward of that turn alone, and here the reward comes with a later one; "
    "`at_grpo` learns with `score: return`, `epo_explicit` with `gamma: 1.0`",
    "own plan": "scores a plan by the rewards under it alone: an earlier plan has no part in what a later one earns, "
    "and where one agent acts each turn is a plan",
    "own agent": "credits an agent with the rewards of its own turns, and here those of another agent earn them",
    "own segment": "scores a segment by the rewards of its own turns, and here the last segment earns them",
    "effect": "knows an action by the state that it leads to, or by an end with or without a reward, and here that is "
    "one and the same for actions of different worth",
    "gains": "credits a last turn with the return and all others with what the expectation grows by, so that a turn "
    "that may end the episode by chance has gains without losses",
    "branches": "gives credit where a path branches, and most turns that decide here come after the last branch; with "
    "a branch in front of each of them it learns",
    "leaves": "divides a turn's score by the root of its leaves and compares all turns of a task, so that a shared "
    "turn looks worse than its leaves, whatever it did; on chains it learns",
    "first": "keeps the episodes that end first, and here those are the ones that stop at once; where all episodes are "
    "equally long it keeps a fair share of them",
    "discount": "discounts by 0.95 a turn and compares turns of equal states alone, so that to stop looks better than "
    "to go on while later turns are played at random; with `gamma: 1.0` it learns",
    "mean reward": "subtracts the mean of all turns' rewards from each, so that every further turn is a loss; with "
    "`reward_norm: none` and without `whiten_rewards` it learns",
    "understood": "pays 0.5 for every turn whose action is understood, so that to walk on earns more than to arrive; "
    "with `grounded_weight: 0` it learns",
    "right": "knows only right and wrong: a return above 0.5 is right, and here one of 2/3 is not yet the best; with "
    "`right_above: 0.9` it learns",
    "joint context": "compares joint actions behind the same history: in chains no two episodes share more than the "
    "beginning, and its sampler tries the first two joint steps alone several times; where each of them is, it learns",
    "lone executions": "compares executions of one plan, and the second plan of an episode has a single one: the "
    "method has one plan an episode; with `micro_group: group` it learns",
    "later plan": "has one plan an episode: `nested` lets trials go on greedily behind their first turn, and while the "
    "executor learns the planner is frozen, so that the second plan is trained in no phase; where it belongs to the "
    "executor's level it learns",
    "best trial": "executes the plan whose trial returned most, and to stop at once wins by chance half of the time; "
    "with `select: random` it learns",
    "noise": "compares two alternatives at a time, and its gradient is more than ten times as noisy as GRPO's here, so "
    "that this budget is too small; with 80,000 turns it learns",
    "frozen": "freezes the executor after 25 steps, before it has learned, for good; with 100 steps it learns",
}
_WHERE: dict[str | tuple[str, str], str] = {
    "at_grpo": "own reward",
    "epo_explicit": "own reward",
    "dual_loop": "own plan",
    "mars": "own agent",
    ("mars", "early_end"): "mean reward",
    "hierarchical_grpo": "own agent",
    "mars2": "own segment",
    "rtmc": "effect",
    "igpo": "gains",
    "spo": "branches",
    "treerpo": "branches",
    ("c3", "two_clocks"): "branches",
    ("c3", "two_agents"): "branches",
    ("c3", "early_end"): "noise",
    "tree_diff": "leaves",
    ("hgpo", "early_end"): "discount",
    "spa_rl_outcome": "understood",
    ("m_grpo", "irrelevant"): "right",
    "magrpo": "joint context",
    ("himac", "two_clocks"): "lone executions",
    ("himac@nested", "early_end"): "best trial",
    ("himac@nested+alternating", "two_clocks"): "later plan",
    ("coda_peco+bottom_up", "two_clocks"): "frozen",
    ("grpo@overprovision", "early_end"): "first",
    ("treeps_rag@treeps_rag", "early_end"): "first",
    **{
        (name, "two_clocks"): BUDGET
        for name in (
            *("branpo@branpo", "ccpo@ccpo", "ccpo@ccpo+ccpo_history", "grpo@grpo_roc", "grpo@overprovision"),
            *("grpo@prune", "portool@portool", "sharp@sharp"),
        )
    },
}
"""A method, or a method in a world, to its cause."""

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
    "scored_skills": "keeps skills in words, and a turn has no text here; scripts/bench/memory.py has a world for them",
}
"""Why a schedule is not run."""


def cause(method: str, world: str) -> str | None:
    """The key of `CAUSES`, or None where none is known; what holds of an estimator holds with each sampler too."""
    estimator = method.partition("@")[0]
    return _WHERE.get((method, world)) or _WHERE.get((estimator, world)) or _WHERE.get(estimator)


def reason(method: str, world: str) -> str | None:
    """The reason, or None where none is known."""
    found = cause(method, world)
    return None if found is None else CAUSES[found]
