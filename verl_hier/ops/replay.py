"""Stored rollouts made again: the recipe's sampler, worker and world, and a policy that answers from the file.

A world whose answers depend on the actions alone (`fork="recorded"`) answers from the file too, and is not asked again.
What comes out is the same tree, or the place where it differs. It needs the recipe's tokenizer and no model.
"""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass
from typing import Any

from verl_hier.environments.pool import EnvironmentPool
from verl_hier.errors import GraphError, RecipeError, RolloutError
from verl_hier.graph import RolloutGraph, read_graphs
from verl_hier.host.part import Part
from verl_hier.recipe.runner import RolloutRunner
from verl_hier.rollout import Request
from verl_hier.rollout.recorded_policy import RecordedPolicy, differences
from verl_hier.rollout.recorded_world import RecordedWorld


@dataclass(frozen=True)
class Replay:
    """One replayed task.

    Attributes:
        graph: as it was stored.
        differences: places where the replay differs, or why it could not go on; empty when it is the same tree.
    """

    graph: RolloutGraph
    differences: tuple[str, ...]


async def replay(source: str | os.PathLike[str], runner: RolloutRunner) -> list[Replay]:
    """Replay every task of a graph file or folder.

    Args:
        source: what `hier.store.path` wrote.
        runner: of the recipe that wrote it.

    Raises:
        RecipeError: when tasks come from verl's data set, or the recipe makes fewer than the file needs.
        GraphError: when the file cannot be read.
    """
    tasks = _Tasks(runner.recipe.parts.environment)
    pool = runner.pool()
    try:
        return [await _replay(graph, tasks.of(graph), runner, pool) for graph in read_graphs(source)]
    finally:
        await pool.close()


async def _replay(graph: RolloutGraph, task: dict[str, Any], runner: RolloutRunner, pool: EnvironmentPool) -> Replay:
    try:
        recorded = RecordedPolicy(graph)
        runner = dataclasses.replace(runner, opens=lambda name: recorded)
        world = RecordedWorld(graph) if RecordedWorld.is_in(graph) else pool
        again = await runner.roll_out(Request.of(graph, task), recorded, world)
    except RolloutError as error:
        return Replay(graph, (str(error),))
    return Replay(graph, tuple(differences(graph, again)))


class _Tasks:
    """Tasks of the recipe, made when they are asked for."""

    def __init__(self, environment: Part) -> None:
        self._spec: Any = environment.spec
        self._options = environment.options
        self._made: dict[str, list[dict[str, Any]]] = {}
        if self._spec.tasks is None:
            raise RecipeError(
                f"hier.environment.name: tasks of {self._spec.name!r} come from verl's data set and are scored by "
                "verl, so a stored rollout of it cannot be replayed from the recipe."
            )

    def of(self, graph: RolloutGraph) -> dict[str, Any]:
        """The task of a graph, by its place in the data set."""
        split = "val" if graph.request.get("validate") else "train"
        if split not in self._made:
            self._made[split] = self._spec.tasks(self._options, split)
        number = graph.task.get("index")
        if number is None:
            raise GraphError(f"the graph of task {graph.task['uid']} does not say which task it is: it has no `index`.")
        if number >= len(self._made[split]):
            raise RecipeError(
                f"hier.environment: the recipe makes {len(self._made[split])} tasks and the stored rollout is of task "
                f"{number}; give the overrides of the run."
            )
        return self._made[split][number]
