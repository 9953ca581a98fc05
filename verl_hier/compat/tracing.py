"""verl's tracing of rollouts (`actor_rollout_ref.rollout.trace`) for ours.

verl's client of the rollout servers reports each request by itself, to whatever is traced around it. Its own agent
loops open one trace a session; its v1 worker opens none. A trace of ours is a task with all of its episodes: the
requests, and at the end the tree.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

from verl.utils.rollout_trace import RolloutTraceConfig, rollout_trace_attr, rollout_trace_op

from verl_hier.compat.examples import example_of
from verl_hier.graph import RolloutGraph
from verl_hier.graph.columnar.held import Edit


class Tracing:
    """Traces of the tasks of a rollout worker, as far as the recipe wants them."""

    def __init__(self) -> None:
        self._begun: Counter[tuple[int, bool]] = Counter()

    def of(self, trajectory: Mapping[str, Any]) -> AbstractContextManager[None]:
        """A trace around the rollout of a task.

        Of the tasks of a step a worker traces those that it begins first, `max_samples_per_step_per_worker` many.

        Args:
            trajectory: verl's `step`, `sample_index` and `validate` of the task.
        """
        step, validate = int(trajectory["step"]), bool(trajectory["validate"])
        most = RolloutTraceConfig.get_instance().max_samples_per_step_per_worker
        self._begun[step, validate] += 1
        found: AbstractContextManager[None] = rollout_trace_attr(
            sample_index=trajectory["sample_index"],
            step=step,
            name="agent_loop",
            validate=validate,
            trace=most is None or self._begun[step, validate] <= most,
        )
        return found

    async def tell(self, graph: RolloutGraph, edit: Edit | None = None) -> None:
        """Add the tree of a finished rollout to its trace; see `example_of`."""
        if RolloutTraceConfig.get_backend() is not None:
            example = example_of(graph, edit)
            returns = [episode.ret for episode in graph.complete()]
            await self.tree([{"role": "user", "content": example["title"]}], "\n".join(example["outline"]), returns)

    @rollout_trace_op  # type: ignore[untyped-decorator]
    async def tree(self, messages: list[dict[str, str]], answer: str, returns: list[float]) -> dict[str, Any]:
        """What the trackers show of a rollout; verl's decorator reports the arguments and the result.

        Args:
            messages: the task, as verl's report to trackio reads it.
            answer: the outline of the tree.
            returns: of the episodes that ended regularly.
        """
        return {"answer": answer, "returns": returns}
