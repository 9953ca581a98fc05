"""Success of episodes: the last word of the world, and what is decided where it said none, however it is asked."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verl_hier.graph import EpisodeRecord, RolloutGraph
from verl_hier.graph.success import WITHOUT_WORD, decide, decided, decided_column, said_of_older, success_of

ENDED = ("finished", "truncated")
STATUS = st.sampled_from([*ENDED, *ENDED, "failed", "pruned"])
EPISODES = st.lists(st.tuples(STATUS, st.sampled_from([None, None, True, False]), st.booleans()), max_size=5)
"""Status, success, and whether the episode has a turn."""


@pytest.mark.parametrize(
    ("word", "says_won", "success"),
    [
        *[(True, says, True) for says in (None, True, False)],
        *[(False, says, False) for says in (None, True, False)],
        *[(None, None, None), (None, False, None), (None, True, False)],
    ],
)
def test_the_last_word_of_the_world_decides(word, says_won, success):
    assert success_of(word, says_won) is success


def made(drawn, marked=False):
    records = [
        EpisodeRecord(number, status=status, success=success, leaf=0 if turns else -1)
        for number, (status, success, turns) in enumerate(drawn)
    ]
    return RolloutGraph({"uid": "u"}, episodes=records, counts={WITHOUT_WORD: 1} if marked else {})


@settings(deadline=None)
@given(EPISODES)
def test_a_graph_is_decided_by_its_own_episodes_or_marked(drawn):
    graph = made(drawn)
    silent = [record for record in graph.episodes if record.success is None]
    ended = [record.id for record in silent if record.status in ENDED]
    speaks = len(silent) < len(drawn)
    decide(graph, silent)
    for record, (_, before, _) in zip(graph.episodes, drawn, strict=True):
        assert record.success is (False if speaks and record.id in ended else before)
    assert graph.counts == ({WITHOUT_WORD: len(ended)} if ended and not speaks else {})


@settings(deadline=None)
@given(st.lists(st.tuples(EPISODES, st.booleans()), max_size=3))
def test_graphs_of_a_world_are_decided_together(drawn):
    """As records and as a column: where one complete episode has a success, the marked graphs' others were lost."""
    graphs = [made(*each) for each in drawn]
    complete = [[r.status in ENDED and r.leaf >= 0 for r in graph.episodes] for graph in graphs]
    speaks = any(
        r.success is not None
        for graph, each in zip(graphs, complete, strict=True)
        for r in np.array(graph.episodes)[each]
    )
    wanted = [
        [
            False if is_complete and speaks and marked and r.success is None else r.success
            for r, is_complete in zip(graph.episodes, each, strict=True)
        ]
        for graph, each, (_, marked) in zip(graphs, complete, drawn, strict=True)
    ]
    found = decided(graphs)
    for graph, each, success, pairs in zip(graphs, complete, wanted, found, strict=True):
        assert [(record.id, word) for record, word in pairs] == [
            (r.id, word) for r, is_complete, word in zip(graph.episodes, each, success, strict=True) if is_complete
        ]
    records = [r for graph in graphs for r in graph.episodes]
    column = pa.chunked_array([pa.array([r.success for r in records], pa.bool_())])
    is_open = [marked for graph, (_, marked) in zip(graphs, drawn, strict=True) for _ in graph.episodes]
    flat = np.array([each for part in complete for each in part], bool)
    assert decided_column(column, flat, np.array(is_open, bool)).to_pylist() == [w for part in wanted for w in part]


def test_older_steps_are_named():
    assert said_of_older({}) == said_of_older({1: 4, 2: 5}) == []
    (one,) = said_of_older({3: 3, 1: 4})
    assert one.startswith("An earlier version wrote step 3, and their figures")
    (many,) = said_of_older({7: 3, 2: 1, 4: 2, 9: 4})
    assert many.startswith("An earlier version wrote 3 steps from 2 to 7, and")
