"""The rollout graph and its views: rows for verl, the turn table for estimators, files for people."""

from verl_hier.trajectory.build import TableBuilder, build_table
from verl_hier.trajectory.chat import chat_rows, conversation
from verl_hier.trajectory.dump import dump_rows
from verl_hier.trajectory.graph import SCHEMA_VERSION, EpisodeRecord, Message, Node, RolloutGraph
from verl_hier.trajectory.rows import Row, SharedPrefix, graph_rows
from verl_hier.trajectory.storage import read_graphs, write_graphs
from verl_hier.trajectory.table import EPISODE_COLUMNS, TURN_COLUMNS, TurnTable
from verl_hier.trajectory.talk import messages, who_saw

__all__ = [
    "EPISODE_COLUMNS",
    "SCHEMA_VERSION",
    "TURN_COLUMNS",
    "EpisodeRecord",
    "Message",
    "Node",
    "RolloutGraph",
    "Row",
    "SharedPrefix",
    "TableBuilder",
    "TurnTable",
    "build_table",
    "chat_rows",
    "conversation",
    "dump_rows",
    "graph_rows",
    "messages",
    "read_graphs",
    "who_saw",
    "write_graphs",
]
