"""The rollout graph and its views: rows for verl, the turn table for estimators, files for people."""

from verl_hier.trajectory.build import TableBuilder, build_table
from verl_hier.trajectory.graph import SCHEMA_VERSION, EpisodeRecord, Node, RolloutGraph
from verl_hier.trajectory.rows import Row, SharedPrefix, graph_rows
from verl_hier.trajectory.storage import read_graphs, write_graphs
from verl_hier.trajectory.table import EPISODE_COLUMNS, TURN_COLUMNS, TurnTable

__all__ = [
    "EPISODE_COLUMNS",
    "SCHEMA_VERSION",
    "TURN_COLUMNS",
    "EpisodeRecord",
    "Node",
    "RolloutGraph",
    "Row",
    "SharedPrefix",
    "TableBuilder",
    "TurnTable",
    "build_table",
    "graph_rows",
    "read_graphs",
    "write_graphs",
]
