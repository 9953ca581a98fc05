"""The comparisons of `learning.py`: tasks, methods on them, and the cold starts that the methods of one share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

ONE_AND_TWO = "hier.coldstart.variants=[{goals: 1}, {goals: 2}]"
TAGGED = "++hier.environment.actions=tags"
"""Answers in tags, which the authors' rewards of searches read."""
COLD_STARTS = {
    "households": (("himac_alfworld", "grpo_alfworld"), (ONE_AND_TWO, "hier.coldstart.steps=2000")),
    "systems": (
        ("metaagentx_alfworld", "chain_of_agents_alfworld", "grpo_alfworld"),
        ("hier.coldstart.steps=1300",),
    ),
    "bugs": (("dual_loop_bug_reproduction", "grpo_bug_reproduction"), ("hier.coldstart.steps=800",)),
    "clocks": (
        ("hiper_alfworld", "himac_alfworld", "grpo_alfworld"),
        (ONE_AND_TWO, "hier.coldstart.steps=2400"),
    ),
    "sums": (("dr_mas_math", "marft_math", "grpo_math"), ("hier.coldstart.steps=500",)),
    "games": (("mars_games",), ()),
    "questions": (("matpo_search", "grpo_search"), ("hier.coldstart.steps=600",)),
    "tagged": (("igpo_search", "grpo_search"), (TAGGED, "hier.coldstart.steps=600")),
    "three": (
        ("himac_alfworld", "grpo_alfworld"),
        ("hier.coldstart.variants=[{goals: 1}, {goals: 2}, {goals: 3}]", "hier.coldstart.steps=2400"),
    ),
}
"""Recipes whose formats one model learns, and the options of its cold start."""


@dataclass(frozen=True)
class Comparison:
    """Methods on one task.

    Attributes:
        task: what the report calls it.
        methods: name in the report to recipe, and the overrides that are the method's own behind it; the last is the
            flat baseline.
        cold_start: which of `COLD_STARTS` all of them start from.
        tokens: generated tokens of each run.
        test_every: steps from one measurement to the next.
        overrides: what the task changes in all recipes.
        rates: learning rates that each method tries on another seed, for a third of the tokens; the better one is that
            of its runs. Without any, all methods have that of their recipes.
        held_out: tasks of each measurement.
    """

    task: str
    methods: Mapping[str, str]
    cold_start: str
    tokens: int
    test_every: int
    overrides: tuple[str, ...] = ()
    rates: tuple[float, ...] = ()
    held_out: int = 128


FLAT = {"gigpo": "gigpo_alfworld", "grpo": "grpo_alfworld"}
HOUSEHOLDS = {"himac": "himac_alfworld", **FLAT}
CLOCKS = {
    "hiper": "hiper_alfworld",
    "hiper_no_critic": "hiper_alfworld hier/method=grpo hier.worker.name=switch_keep +hier.worker.history=0",
    **HOUSEHOLDS,
}
TREES = {"tree_grpo": "tree_grpo_alfworld", "treerl": "treerl_alfworld", "arpo": "arpo_alfworld"}
SEARCHES = {
    **{name: f"{name}_search" for name in ("tree_grpo", "arpo", "at2po", "branpo", "matpo")},
    "grpo": "grpo_search",
}
PAID_BY = (
    "++hier.environment.reward=none ++hier.environment.invalid_penalty=0.0 "
    "++hier.rewards.answer.function=verl_hier.rewards.search_answers:"
)
TRUE_ANSWER = "hier.probes.true_answer.prefix='<answer>' hier.probes.true_answer.suffix='</answer>'"
"""The true answer as it stands in tags, of which IGPO asks how likely it is."""
AUTHORS = {
    # 16 optimiser steps a batch, F1 of sets of words and -2 for a wrong format.
    "igpo_authors": f"igpo_search {TRUE_ANSWER} {PAID_BY}overlap_of_word_sets ++hier.update.mini_batch.steps=16 "
    "++hier.probes.true_answer.measure=probability actor_rollout_ref.actor.entropy_coeff=0.001 "
    "actor_rollout_ref.actor.clip_ratio_high=0.2",
    "igpo": f"igpo_search {TRUE_ANSWER}",
    # An exact match, or F1 from 0.3 on; ratios to the rollout's own log-probs, and a mean over tokens.
    "branpo_authors": f"branpo_search {PAID_BY}exact_or_partial hier.guards.weight_by=token "
    "algorithm.rollout_correction.bypass_mode=true algorithm.rollout_correction.rollout_is_batch_normalize=true",
    "branpo": "branpo_search",
    "grpo": "grpo_search",
}
"""Methods with what their authors reward and how they step, beside the settings that small recipes have of our own.
Numbers of a laptop's size (tasks, lengths, learning rate, and no KL term, which needs a second model) are the same in
all."""
AGAINST_RANDOM = "hier/method=grpo hier.worker.name=self_play +hier.worker.seats={player_0:{},player_1:{by:random}}"
"""A flat agent in a game: one seat learns from games against the player that all methods are measured against."""
RATES = (1e-4, 3e-4)
QUESTIONS = 112
"""Held-out questions: the generated world has 114 of two hops."""
COMPARISONS = {
    "two_goals": Comparison("households, 2 goals", HOUSEHOLDS, "households", 55_000, 4, ("hier.environment.goals=2",)),
    "one_goal": Comparison("households, 1 goal", HOUSEHOLDS, "households", 40_000, 4, ("hier.environment.goals=1",)),
    "systems": Comparison(
        "households, 1 goal, designs and chains",
        {
            "metaagentx": "metaagentx_alfworld",
            "chain_of_agents": "chain_of_agents_alfworld",
            "grpo": "grpo_alfworld",
        },
        "systems",
        32_000,
        4,
    ),
    "bugs": Comparison(
        "tests that show bugs",
        {"dual_loop": "dual_loop_bug_reproduction", "grpo": "grpo_bug_reproduction"},
        "bugs",
        20_000,
        10,
    ),
    "clocks_one_goal": Comparison(
        "households, 1 goal, critics", CLOCKS, "clocks", 40_000, 4, ("hier.environment.goals=1",)
    ),
    "clocks_two_goals": Comparison(
        "households, 2 goals, critics", CLOCKS, "clocks", 55_000, 4, ("hier.environment.goals=2",)
    ),
    "solver_verifier": Comparison(
        "sums", {"dr_mas": "dr_mas_math", "marft": "marft_math", "grpo": "grpo_math"}, "sums", 40_000, 4
    ),
    "self_play": Comparison(
        "two games against a random player",
        {"mars": "mars_games", "spiral": "spiral_games", "grpo": f"mars_games {AGAINST_RANDOM}"},
        "games",
        20_000,
        8,
    ),
    "lead": Comparison(
        *("two-hop questions", {"matpo": "matpo_search", "grpo": "grpo_search"}, "questions", 40_000, 4),
        held_out=QUESTIONS,
    ),
    "authors": Comparison(
        "two-hop questions, authors' settings", AUTHORS, "tagged", 16_000, 4, (TAGGED,), held_out=QUESTIONS
    ),
    "long_one_goal": Comparison(
        *("households, 1 goal, at length", {**TREES, **HOUSEHOLDS}, "clocks", 120_000, 8),
        ("hier.environment.goals=1",),
        RATES,
    ),
    "long_two_goals": Comparison(
        *("households, 2 goals, at length", {"hiper": CLOCKS["hiper"], **HOUSEHOLDS}, "clocks", 165_000, 8),
        ("hier.environment.goals=2",),
        RATES,
    ),
    "long_three_goals": Comparison(
        *("households, 3 goals, at length", HOUSEHOLDS, "three", 165_000, 8),
        ("hier.environment.goals=3",),
        RATES,
    ),
    "long_questions": Comparison(
        *("two-hop questions, at length", SEARCHES, "questions", 120_000, 8), rates=RATES, held_out=QUESTIONS
    ),
}
for _name, _tokens in (("systems", 96_000), ("bugs", 60_000)):
    _short = COMPARISONS[_name]
    COMPARISONS[f"long_{_name}"] = replace(
        _short, task=f"{_short.task}, at length", tokens=_tokens, test_every=8, rates=RATES
    )
GROUPS = {
    "critics": ("clocks_one_goal", "clocks_two_goals"),
    "societies": ("self_play", "solver_verifier", "lead"),
    "at_length": tuple(name for name in COMPARISONS if name.startswith("long_")),
}
"""Names for several comparisons."""
SHORT = [name for name in COMPARISONS if name not in GROUPS["at_length"]]
"""Comparisons of an evening or two."""
