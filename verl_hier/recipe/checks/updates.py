"""Mini-batches that cannot be made, tasks that cannot be exchanged, and orders that nothing keeps."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from verl_hier.errors import RecipeError
from verl_hier.recipe.checks.lengths import ACTOR, data_parallel
from verl_hier.recipe.checks.parts import episodes
from verl_hier.recipe.checks.rule import rule, value
from verl_hier.recipe.composed import ComposedRecipe
from verl_hier.training.mini_batches import require_rows
from verl_hier.training.options import LaunchOrderOptions
from verl_hier.training.refill import most_tasks

Span = tuple[int, int]
MODE = "trainer.v1.trainer_mode"


SAMPLER = "trainer.v1.sampler."
OTHERS = {
    SAMPLER + "custom_sampler.name": "the sampler that it names chooses what is trained",
    "skip.rollout_tq.enable": "rollouts are read from files",
}
"""Lines that choose the tasks of a step by themselves, and why."""


@dataclass(frozen=True)
class Step:
    """What one step of the trainer does, as far as the numbers of a recipe say.

    Attributes:
        tasks: that it trains; the number of groups.
        episodes: trained episodes a task.
        rows: least and most rows that the episodes make: one an episode, or one a turn.
        optimiser_steps: fewest and most updates, all epochs; they differ where a mini-batch is measured in rows.
        further: tasks that it may sample besides, in place of others (`hier.refill`).
    """

    tasks: int
    episodes: int
    rows: Span
    optimiser_steps: Span
    further: int

    def __str__(self) -> str:
        steps = f"{_span(self.optimiser_steps)} optimiser step(s) on {_span(self.rows)} rows"
        text = f"{self.tasks} tasks x {self.episodes} episodes, {steps}"
        return f"{text}; up to {self.further} further tasks in place of others" if self.further else text


@rule
def check_mini_batches(recipe: ComposedRecipe) -> None:
    """Refuse mini-batches that cannot be divided among the ranks, or whose rows verl would draw anew."""
    update = recipe.hier.update
    require_rows(update, data_parallel(recipe))
    if update.keep_tasks_together and value(recipe.config, ACTOR + "shuffle"):
        raise RecipeError(
            f"hier.update.keep_tasks_together: {ACTOR}shuffle draws the rows of each mini-batch anew; set one of them "
            "to false."
        )


@rule
def check_refill(recipe: ComposedRecipe) -> None:
    """Refuse to exchange tasks where steps do not wait for their own tasks, where others choose what is trained, and
    where one score is all that there is to compare."""
    refill, config = recipe.hier.refill, recipe.config
    if refill is None:
        return
    mode = value(config, MODE)
    if mode != "hier_sync":
        raise without_refill(mode)
    filters = {"algorithm.filter_groups.enable": "verl exchanges tasks by itself, without a limit"}
    _refuse_others(recipe, OTHERS | filters, "hier.refill")
    if refill.std_above is not None and episodes(recipe) < 2:
        raise RecipeError(
            "hier.refill.std_above: a task has one episode, whose score differs from no other one; set "
            "actor_rollout_ref.rollout.n to at least 2, or this to null."
        )


@rule
def check_launch_order(recipe: ComposedRecipe) -> None:
    """Refuse an order of tasks where no task can overtake another one, where others choose what is trained, and where
    verl would drop a task before its turn has come."""
    order, config = recipe.hier.launch_order, recipe.config
    if order is None:
        return
    mode = value(config, MODE)
    if mode == "hier_sync":
        raise RecipeError(
            f"hier.launch_order: under {mode} a step trains the tasks that it has launched, and waits for all of them; "
            f"set this to null, or {MODE} to hier_colocate_async or hier_separate_async."
        )
    _refuse_others(recipe, OTHERS, "hier.launch_order")
    least, ahead = latest_span(recipe, order), f"trainer.v1.{mode.removeprefix('hier_')}.num_warmup_batches"
    threshold = value(config, SAMPLER + "max_off_policy_threshold")
    if value(config, SAMPLER + "max_off_policy_strategy") == "drop" and threshold is not None and threshold < least:
        raise RecipeError(
            f"{SAMPLER}max_off_policy_threshold: {threshold} drops tasks before their turn comes, which is within "
            f"{least} steps ({ahead} + hier.launch_order.late_steps + 1); set it to at least {least}, or to null."
        )


def latest_span(recipe: ComposedRecipe, order: LaunchOrderOptions) -> int:
    """Steps from the launch of a task to its training, both of them counted, that an order lets it take at most.

    As many tasks lie between the two as are sampled ahead: each step launches as many as it trains.
    """
    mode = str(value(recipe.config, MODE)).removeprefix("hier_")
    return math.ceil(value(recipe.config, f"trainer.v1.{mode}.num_warmup_batches")) + order.late_steps + 1


def _refuse_others(recipe: ComposedRecipe, others: Mapping[str, str], option: str) -> None:
    for line, why in others.items():
        if value(recipe.config, line):
            raise RecipeError(f"{line}: {why}; remove it, or set {option} to null.")


def without_refill(mode: str) -> RecipeError:
    """The refusal of `hier.refill` under another trainer than the synchronous one."""
    return RecipeError(
        f"hier.refill: under {mode} tasks are sampled ahead of the step that trains them, so no step can exchange its "
        f"own; set {MODE} to hier_sync, or hier.refill to null."
    )


def step_of(recipe: ComposedRecipe) -> Step:
    """What one step of a sound recipe does."""
    tasks, found = int(value(recipe.config, "data.train_batch_size")), episodes(recipe)
    batches = 1
    if value(recipe.config, MODE) == "hier_separate_async":
        batches = int(value(recipe.config, "trainer.v1.separate_async.parameter_sync_step"))
    rows = (tasks * found, tasks * found * recipe.hier.rollout.max_turns)
    refill = recipe.hier.refill
    return Step(
        tasks=tasks,
        episodes=found,
        rows=rows,
        optimiser_steps=_optimiser_steps(recipe, tasks, rows, batches),
        further=0 if refill is None else most_tasks(refill, tasks) - tasks,
    )


def _optimiser_steps(recipe: ComposedRecipe, tasks: int, rows: Span, batches: int) -> Span:
    """Updates of a step that trains so many tasks and rows in so many batches, as the hier trainers count them."""
    size = recipe.hier.update.mini_batch
    epochs = recipe.hier.update.epochs or int(value(recipe.config, ACTOR + "ppo_epochs") or 1)
    times = epochs * batches
    if size.rows is not None:
        fewest, most = (-(-(number // batches) // size.rows) for number in rows)
        return fewest * times, most * times
    mini = size.prompts or int(value(recipe.config, ACTOR + "ppo_mini_batch_size"))
    number = size.steps or max(1, tasks // batches // mini)
    return number * times, number * times


def _span(numbers: Span) -> str:
    return f"{numbers[0]}" if numbers[0] == numbers[1] else f"{numbers[0]} to {numbers[1]}"
