"""The success of an episode: the one definition that rollouts, evaluation, validation, metrics and estimators share.

Success is the last word of the world: the last `info["won"]` that it reported in the episode, its reset included. An
episode that ended without one, at a limit or otherwise, was not won where that world ever says `won`; only where it
never does there is no success. Whether a world ever says it is declared (`EnvironmentSpec.says_won`), or else seen from
the episodes that a figure is about: those of a step, of a validation, of an evaluation. The episodes of worlds that do
not declare it are therefore decided together, and `WITHOUT_WORD` marks the graphs that have some to decide.

Neither a worker that ends its own task (`EpisodeView.finish`) nor a sampler that stops an episode (`Episode.stop`) has
asked the world; such episodes have no success in any world.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from verl_hier.graph.nodes import EpisodeRecord, RolloutGraph

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

WITHOUT_WORD = "ended_without_word"
"""In `RolloutGraph.counts`: episodes that ended without a word of a world which does not declare whether it says
`won`."""
LAST_WORD_SINCE = 4
"""Schema version from which on `EpisodeRecord.success` is what is defined here; before it was the last answer's. From
then on `Node.stop_reason` also says that a turn was cut when its tokens say so; before it was what the server said."""


def success_of(word: bool | None, says_won: bool | None) -> bool | None:
    """The success of an episode that the world was asked about.

    Args:
        word: the last `info["won"]` of the world in the episode; None when it said none.
        says_won: whether the world ever says `won`; None when that is not declared.

    Returns:
        None where the world never says `won`, and where that is not known yet; see `decided`.
    """
    if word is not None:
        return word
    return False if says_won else None


def decide(graph: RolloutGraph, without_word: Sequence[EpisodeRecord]) -> None:
    """Decide the open episodes of one graph where another one of its episodes shows that the world says `won`; mark the
    graph where that is still not known.

    Args:
        graph: whose episodes have ended.
        without_word: those that ended without a word of a world which does not declare whether it says `won`.
    """
    open_episodes = [record for record in without_word if record.status in ("finished", "truncated")]
    if any(record.success is not None for record in graph.episodes):
        for record in open_episodes:
            record.success = False
    elif open_episodes:
        graph.counts[WITHOUT_WORD] = len(open_episodes)


def decided(graphs: Sequence[RolloutGraph]) -> list[list[tuple[EpisodeRecord, bool | None]]]:
    """For each graph of one world its complete episodes, each with its success."""
    says_won = any(record.success is not None for graph in graphs for record in graph.complete())
    return [
        [(record, success_of(record.success, says_won and WITHOUT_WORD in graph.counts)) for record in graph.complete()]
        for graph in graphs
    ]


def said_of_older(versions: Mapping[int, int]) -> list[str]:
    """A sentence where stored figures mean something else than they do now; none for rollouts of this version.

    Args:
        versions: by the number of each step the oldest schema version of its graphs.
    """
    older = sorted(step for step, version in versions.items() if version < LAST_WORD_SINCE)
    if not older:
        return []
    steps = f"step {older[0]}" if len(older) == 1 else f"{len(older)} steps from {older[0]} to {older[-1]}"
    return [
        f"An earlier version wrote {steps}, and their figures are shown as it stored them: success is what the last "
        "answer of the environment said, empty where that refused the action, and a turn counts as cut only where the "
        "server said so."
    ]


def decided_column(
    success: pa.ChunkedArray, complete: NDArray[np.bool_], is_open: NDArray[np.bool_]
) -> pa.ChunkedArray:
    """The same for a column of the episodes of one world.

    Args:
        success: (E,) booleans and nulls.
        complete: (E,) whether each episode is complete.
        is_open: (E,) whether the graph of each episode is marked by `WITHOUT_WORD`.

    Returns:
        (E,) the column, with false in the place of nulls of complete, open episodes where the world says `won`.
    """
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    counted = np.asarray(complete)
    known = ~np.asarray(success.is_null(), bool) & counted
    if not known.any():
        return success
    lost = counted & np.asarray(is_open, bool) & ~known
    return pc.if_else(pa.chunked_array([pa.array(lost)]), pa.scalar(False), success)
