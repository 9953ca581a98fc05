"""Rollouts of a recipe without training: its environment and worker, and any policy."""

from __future__ import annotations

import asyncio
import math
import os
import threading
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from verl_hier.errors import RecipeError
from verl_hier.graph import RolloutGraph
from verl_hier.ops.players import Player, Source, player_of, run_of
from verl_hier.recipe.composed import ComposedRecipe
from verl_hier.rollout import Request, Sampler, Sampling
from verl_hier.rollout.rewards import Reward
from verl_hier.training.schedule import Schedule

T = TypeVar("T")
SCORE = "score"
"""Name of the score of verl's reward function among the rewards of an episode."""
Progress = Callable[[RolloutGraph, int, int], None]
"""Called with each finished task, the number of finished tasks and the number of all."""


@dataclass(frozen=True)
class Plan:
    """Which tasks are played, how often, and how the policy samples."""

    split: str | None = None
    """Split of the environment, or a Parquet file where the tasks are verl's; None: the recipe's `data.val_files`, or
    `data.train_files` with `trees`."""
    tasks: int | Sequence[int] | None = None
    """How many tasks of the split, the first ones, or their numbers; None plays all."""
    n: int | None = None
    """Episodes of each task; None: `val_kwargs.n` of the recipe's `actor_rollout_ref.rollout`, with `trees` or `search`
    its `n`."""
    temperature: float | None = None
    """Sampling temperature, 0 for the likeliest token; None: that of `val_kwargs`, with `trees` or `search` that of
    training."""
    seed: int | None = None
    """Root of all random numbers; None: the recipe's `hier.seed`."""
    step: int | None = None
    """Trainer step whose random numbers are drawn; None: the last one of the run whose policy plays, so that they are
    those of its last validation, and 0 for other policies."""
    trees: bool = False
    """Roll out as in training, with the recipe's sampler and budget; otherwise episodes are independent of each other,
    as in validation."""
    search: bool = False
    """Play the tasks of validation with the recipe's sampler and budget, and with n and the sampling of training."""

    def __post_init__(self) -> None:
        if isinstance(self.tasks, int) and self.tasks < 1:
            raise ValueError(f"tasks must be at least 1, got {self.tasks}")
        if self.n is not None and self.n < 1:
            raise ValueError(f"n must be at least 1, got {self.n}")
        if self.temperature is not None and not 0 <= self.temperature < math.inf:
            raise ValueError(f"temperature must be a number of at least 0, got {self.temperature}")


@dataclass(frozen=True)
class ResolvedPlan:
    """A plan with what the recipe says where the plan does not.

    Attributes:
        split: split of the environment.
        tasks: number and task, in order.
        n: episodes of each task.
        sampling: temperature, top-p and top-k.
    """

    split: str
    tasks: tuple[tuple[int, dict[str, Any]], ...]
    n: int
    sampling: Sampling


def resolve_plan(recipe: ComposedRecipe, plan: Plan) -> ResolvedPlan:
    """Fill in a plan from a recipe.

    Raises:
        RecipeError: when there is no such split, file or task.
    """
    rollout, data = recipe.config["actor_rollout_ref"]["rollout"], recipe.config["data"]
    settings = rollout if plan.trees or plan.search else rollout["val_kwargs"]
    named = data["train_files" if plan.trees else "val_files"]
    part = recipe.parts.environment
    if part.spec.tasks is None:
        from verl_hier.compat.data_set import prompt_tasks

        split = plan.split or ", ".join([named] if isinstance(named, str) else map(str, named or ()))
        made = prompt_tasks(recipe.config, plan.split or named)
    else:
        split = plan.split or _single(named)
        made = part.spec.tasks(part.options, split)
    if not made:
        raise RecipeError(f"hier.environment: {part.spec.name!r} has no tasks in the split {split!r}.")
    numbers = range(len(made)) if plan.tasks is None else plan.tasks
    if isinstance(numbers, int):
        numbers = range(min(numbers, len(made)))
    missing = [number for number in numbers if not 0 <= number < len(made)]
    if missing:
        raise RecipeError(f"there is no task {missing[0]}: the split {split!r} has {len(made)} tasks, from 0 on.")
    temperature = settings["temperature"] if plan.temperature is None else plan.temperature
    sampling = Sampling(float(temperature), float(settings["top_p"]), int(settings["top_k"]))
    return ResolvedPlan(split, tuple((number, made[number]) for number in numbers), plan.n or settings["n"], sampling)


async def play(
    recipe: ComposedRecipe,
    player: Player,
    plan: Plan,
    on_progress: Progress = lambda graph, done, tasks: None,
    sampler: Sampler | None = None,
    schedule: Schedule | None = None,
) -> list[RolloutGraph]:
    """Roll out the tasks of a plan, up to `hier.rollout.concurrent_tasks` of them at once; the player stays open.

    Args:
        recipe: the recipe.
        player: plays it.
        plan: what is played.
        on_progress: see `Progress`.
        sampler: decides which episodes exist in place of the recipe's sampler.
        schedule: what it tells the tasks of an evaluation is told to these; None: nothing is.

    Returns:
        One graph a task, in the order of the plan.

    Raises:
        RecipeError: see `resolve_plan`.
        RolloutError: when the policy is gone or a plugin is broken.
    """
    resolved = resolve_plan(recipe, plan)
    slots = asyncio.Semaphore(recipe.hier.rollout.concurrent_tasks)
    source = recipe.parts.environment.spec.name
    done = 0
    numbers = [number for number, _ in resolved.tasks]
    told = (None if schedule is None or plan.trees else schedule.told_in_evaluation(numbers)) or [{} for _ in numbers]

    async def one(number: int, task: dict[str, Any], told: dict[str, Any]) -> RolloutGraph:
        nonlocal done
        request = Request(
            task=task,
            identity={
                "uid": f"{resolved.split}-{number}",
                "index": number,
                "data_source": str(task.get("data_source", source)),
                "instruction": str(task.get("instruction", "")),
            },
            n=resolved.n,
            step=plan.step or 0,
            validate=not plan.trees,
            searches=plan.search,
            sampling=resolved.sampling,
            told=told,
        )
        async with slots:
            graph = await player.play(request, sampler)
        done += 1
        on_progress(graph, done, len(resolved.tasks))
        return graph

    tasks = zip(resolved.tasks, told, strict=True)
    playing = [asyncio.ensure_future(one(number, task, known)) for (number, task), known in tasks]
    try:
        return list(await asyncio.gather(*playing))
    finally:
        for task in playing:
            task.cancel()
        await asyncio.gather(*playing, return_exceptions=True)


async def roll_out(
    source: Source,
    recipe: ComposedRecipe,
    plan: Plan | None = None,
    served_model: str = "",
    on_progress: Progress = lambda graph, done, tasks: None,
) -> tuple[list[RolloutGraph], Player]:
    """Make the player that `source` names, let it play the plan, and close it; see `player_of` and `play`.

    Returns:
        One graph a task, and the closed player, which knows its name and the requests that were refused.
    """
    plan = plan or Plan()
    if plan.seed is not None:
        recipe = replace(recipe, hier=replace(recipe.hier, seed=plan.seed))
    if plan.step is None:
        run = run_of(source)
        plan = replace(plan, step=run.step if run else 0)
    resolve_plan(recipe, plan)  # before a model is loaded
    if recipe.parts.environment.spec.tasks is None:
        from verl_hier.compat.data_set import verl_score

        recipe = replace(recipe, rewards={**recipe.rewards, SCORE: Reward(verl_score(recipe.config))})
    schedule = schedule_of(source, recipe)
    player = player_of(source, recipe, served_model)
    try:
        return await play(recipe, player, plan, on_progress, schedule=schedule), player
    finally:
        await player.close()


def schedule_of(source: Source, recipe: ComposedRecipe) -> Schedule:
    """The recipe's schedule; that of a run which has the same one is in the state of its newest checkpoint."""
    part = recipe.parts.schedule
    made: Schedule = part.spec.factory(part.options)
    run = run_of(source)
    state = None if run is None else run.schedule_state(part.spec.name)
    if state is not None:
        made.load_state_dict(state)
    return made


def recipe_of(source: Source, recipe: str | os.PathLike[str] | None, overrides: Sequence[str] = ()) -> ComposedRecipe:
    """The recipe that a user names, or that of the run whose policy plays.

    Raises:
        RecipeError: when there is none, or overrides are given to the recipe of a run.
    """
    from omegaconf import OmegaConf

    from verl_hier.recipe.compose import PART_OVERRIDE, compose

    if recipe is not None:
        return ComposedRecipe.of(compose(os.fspath(recipe), overrides))
    run = run_of(source)
    if run is None and "://" not in str(source) and not os.path.exists(os.path.expanduser(str(source))):
        raise RecipeError(
            f"there is no folder {source}; name that of a run, or, for a model of the hub, also the recipe that it is "
            "to play (`verl-hier recipes` lists them)."
        )
    if run is None:
        raise RecipeError(f"name the recipe that {source} is to play; `verl-hier recipes` lists them.")
    config = run.recipe()
    for block in filter(None, map(PART_OVERRIDE.match, overrides)):  # another part, not options mixed into the old one
        config = OmegaConf.merge(config, {})
        OmegaConf.set_readonly(config, False)  # of this copy
        OmegaConf.update(config, block[1], {}, merge=False)
    groups = [text for text in overrides if text.partition("=")[0].partition(".")[0] not in config]
    if groups:
        raise RecipeError(
            f"{groups[0]}: the recipe of a run is composed already, so only its keys can be set; name a recipe to "
            "choose anew."
        )
    if overrides:
        config = OmegaConf.merge(config, OmegaConf.from_dotlist(list(overrides)))
    return ComposedRecipe.of(config)


def finish(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end; where a loop runs already, as in a notebook, in a thread of its own."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    ended: list[T] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            ended.append(asyncio.run(work))
        except BaseException as error:  # raised again below, in the thread of the caller
            failed.append(error)

    thread = threading.Thread(target=run, name="verl-hier", daemon=True)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return ended[0]


def _single(files: Any) -> str:
    """The split that a recipe names in `data.val_files`, a name or a list of one."""
    names = [files] if isinstance(files, str) else [str(name) for name in files or ()]
    if len(names) != 1:
        raise RecipeError(f"name a split: the recipe's data files are {', '.join(names) or 'empty'}.")
    return names[0]
