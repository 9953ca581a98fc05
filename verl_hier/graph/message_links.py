"""Messages between agents, derived from contexts and from the sources of their messages."""

from __future__ import annotations

from verl_hier.graph.nodes import RolloutGraph


def who_saw(graph: RolloutGraph, node: int) -> list[int]:
    """Nodes whose prompt contains the text of `node`, in their context or in a message of it.

    Args:
        graph: a graph whose `check` passes.
        node: a turn, or a piece of one.

    Returns:
        Node numbers in order. The later pieces of its own turn are not among them.
    """
    seen: list[bool] = []
    found: list[int] = []
    for other in graph.nodes:  # contexts and sources point back, so one pass is enough
        sources = {source for message in other.messages for source in message.sources}
        carried = any(node in _pieces(graph, source) for source in sources)
        seen.append(carried or (other.context >= 0 and (other.context == node or seen[other.context])))
        if seen[-1] and node not in _pieces(graph, other.id):
            found.append(other.id)
    return found


def messages(graph: RolloutGraph) -> list[tuple[int, int]]:
    """(sender, receiver) of each message from one context to another, ordered by receiver, then by sender.

    The sender is a source of a message, the receiver the first node of its context whose prompt has that message. A
    context's own turns are no messages to it.
    """
    found: list[tuple[int, int]] = []
    for node in graph.nodes:
        sources = [s for message in node.messages if message.role != "assistant" for s in message.sources]
        if sources:
            chain = graph.chain(node.id)[:-1]
            known = {s for earlier in chain for message in graph.nodes[earlier].messages for s in message.sources}
            known.update(chain)
            found += [(source, node.id) for source in sorted({*sources} - known)]
    return found


def _pieces(graph: RolloutGraph, node: int) -> set[int]:
    """All nodes of the turn that `node` ends, itself included."""
    return {piece.id for piece in graph.pieces(graph.nodes[node])}
