"""Graphs put together from the lines of other formats."""

from __future__ import annotations

from collections.abc import Iterable

from verl_hier.errors import GraphError
from verl_hier.graph import EpisodeRecord, Message, Node, RolloutGraph
from verl_hier.ops.exchange.files import Line
from verl_hier.rollout.plain_renderer import Tokenizer


def graph_of(graphs: dict[tuple[int, str], RolloutGraph], step: int, uid: str) -> RolloutGraph:
    """The graph of a task in a step, made when it is first asked for."""
    if (step, uid) not in graphs:
        graphs[step, uid] = RolloutGraph(task={"uid": uid, "index": len(graphs)}, step=step)
    return graphs[step, uid]


def add_episode(graph: RolloutGraph) -> EpisodeRecord:
    """One more episode of a task, without turns."""
    number = len(graph.episodes)
    graph.episodes.append(EpisodeRecord(number, tree=number, status="finished"))
    return graph.episodes[-1]


def add_turn(
    graph: RolloutGraph,
    record: EpisodeRecord,
    observation: list[int],
    action: list[int],
    text: str,
    messages: list[Message],
) -> Node:
    """The next turn of an episode, in a new context."""
    turns = len(graph.path(record.id))
    node = Node(
        id=len(graph.nodes),
        parent=record.leaf,
        context=-1,
        episode=record.id,
        agent="agent",
        role="agent",
        level=0,
        turn=turns,
        segment=0,
        plan=-1,
        observation=observation,
        action=action,
        logprobs=[],
        text=text,
        messages=messages,
    )
    graph.nodes.append(node)
    record.leaf = node.id
    return node


def action_tokens(line: Line, text: str, tokenizer: Tokenizer) -> list[int]:
    """Tokens of a turn, with the end token if the tokenizer has one."""
    end = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    tokens = [*tokenizer.encode(text, add_special_tokens=False), *end]
    if not tokens:
        raise GraphError(f"{line.where}: a turn without a word needs a tokenizer with an end token.")
    return tokens


def checked(graphs: Iterable[RolloutGraph]) -> list[RolloutGraph]:
    """Graphs by step, which offline credit needs in one piece."""
    found = sorted(graphs, key=lambda graph: graph.step)
    for graph in found:
        for episode in graph.episodes:
            graph.nodes[episode.leaf].done = True
        graph.check()
    return found
