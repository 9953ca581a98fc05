"""The rollout graph and its views: rows for verl, the turn table for estimators, files for people."""

from verl_hier.graph.build_table import build_table, number_turns
from verl_hier.graph.chat import chat_rows, conversation
from verl_hier.graph.dump import dump_rows
from verl_hier.graph.message_links import messages, who_saw
from verl_hier.graph.nodes import SCHEMA_VERSION, EpisodeRecord, Message, Node, RolloutGraph
from verl_hier.graph.rows import Row, SharedPrefix, graph_rows
from verl_hier.graph.storage import read_graphs, write_graphs, write_step
from verl_hier.graph.turn_table import EPISODE_COLUMNS, TURN_COLUMNS, TurnTable

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
    "TurnTable",
    "build_table",
    "chat_rows",
    "conversation",
    "dump_rows",
    "graph_rows",
    "messages",
    "number_turns",
    "read_graphs",
    "who_saw",
    "write_graphs",
    "write_step",
]
