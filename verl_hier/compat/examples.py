"""Trees in verl's trackers: what rollout workers tell of a validation, and what the trainer logs of it.

verl logs decoded rows (`trainer.log_val_generations`), from which nobody sees where they branch, or who acts in them.
In their place its own `ValidationGenerationsLogger` gets trees as text, for every tracker that it knows.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import numpy as np
import transfer_queue as tq

from verl_hier.compat.queue import EXAMPLES, arrived
from verl_hier.graph import RolloutGraph
from verl_hier.graph.columnar.held import Edit
from verl_hier.graph.outline import examples, in_a_line, outline, shortened

if TYPE_CHECKING:
    from verl.trainer.ppo.v1 import PPOTrainer as _Base
else:
    _Base = object

LONGEST_TITLE = 300
_INDENT = " " * 4
"""With which Markdown keeps lines as they are, whatever is in them."""


def example_of(graph: RolloutGraph, edit: Edit | None = None) -> dict[str, Any]:
    """What the trainer is told of a task: its `index`, `title` and `outline`, and `mean` and `spread` of its returns.

    Args:
        graph: of the task.
        edit: may change a copy of the graph, which is shown in place of it.
    """
    if edit is not None:
        graph = copy.deepcopy(graph)
        edit(graph)
    returns = [episode.ret for episode in graph.complete()]
    words = str(graph.task.get("instruction") or next((m.content for n in graph.nodes for m in n.messages), ""))
    title = in_a_line(f"{graph.task.get('data_source', 'task')} {graph.task['index']}: {words[: 4 * LONGEST_TITLE]}")
    return {
        "index": int(graph.task["index"]),
        "title": shortened(title, LONGEST_TITLE),
        "outline": list(outline(graph)),
        "mean": float(np.mean(returns)) if returns else None,
        "spread": float(np.ptp(returns)) if returns else 0.0,
    }


class ExampleMixin(_Base):
    """The seam of verl's trainer that logs examples of a validation; see `HierTrainerMixin`."""

    validation_generations_logger: Any

    def _maybe_log_val_generations(self, inputs: list[str], outputs: list[str], scores: list[float]) -> None:
        """Log trees of up to three tasks, of which verl's table has the title, the tree and the mean return."""
        tags = arrived(EXAMPLES)
        if not tags:
            return
        tq.kv_clear(keys=list(tags), partition_id=EXAMPLES)
        found = examples(sorted(tags.values(), key=lambda tag: tag["index"]))
        samples = [
            (f"{says}: {tag['title']}", "\n\n" + "\n".join(_INDENT + line for line in tag["outline"]), tag["mean"])
            for says, tag in found
        ][: self.config.trainer.log_val_generations]
        self.validation_generations_logger.log(self.config.trainer.logger, samples, self.global_steps)
