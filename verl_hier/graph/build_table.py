"""The turn table of a batch, read off its rollout graphs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from verl_hier.graph.nodes import RolloutGraph
from verl_hier.graph.paths import Ints
from verl_hier.graph.turn_table import TurnTable

Learns = Callable[[str, int], bool]
"""Whether the turns of a role on a level are trained."""


def build_table(graphs: Sequence[RolloutGraph]) -> TurnTable:
    """The turn table of several tasks, all turns trained that may be; see `number_turns`."""
    return number_turns(graphs)[0]


def number_turns(
    graphs: Sequence[RolloutGraph], learns: Sequence[Learns] | None = None
) -> tuple[TurnTable, list[Ints]]:
    """The turn table of several tasks, and which turn of it each node became.

    Turns of failed or pruned episodes are left out unless a complete episode shares them.

    Args:
        graphs: graphs whose `check` passes. They must stay as they are until the token columns have been read.
        learns: for each graph, what the schedule trains in this step; everything when omitted.

    Returns:
        the table, and for each graph an array with the turn of each of its nodes, -1 for nodes that are left out.
    """
    # Arrow takes a sixth of a second to import, which commands that build no table need not wait for.
    from verl_hier.graph.columnar.encode import encode
    from verl_hier.graph.columnar.table import table_of

    return table_of(encode(graphs), learns)
