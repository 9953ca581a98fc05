"""What holds in every rollout graph: links point back along paths, lengths agree, forks share a prefix.

Every check takes time in proportion to the size of the graph, whatever a file says.
"""

from __future__ import annotations

from collections.abc import Sequence

from verl_hier.errors import GraphError
from verl_hier.graph.records import EpisodeRecord, Node
from verl_hier.graph.turn_table import TURN_COLUMNS

MOST_STEPS = 2_000_000
"""Turns on all paths of a graph together, a shared turn counted once a path: views of a graph visit each of them."""
TOKEN_COLUMNS = ("turn", "logprob", "entropy", "value")
"""Token columns of the turn table that no mask may replace."""


def check_graph(nodes: Sequence[Node], episodes: Sequence[EpisodeRecord], credit: Sequence[float], uid: str) -> None:
    """Refuse a graph that breaks an invariant.

    Args:
        nodes, episodes, credit: of the graph.
        uid: of its task, for the sentence.

    Raises:
        GraphError: on the first broken one.
    """
    for index, node in enumerate(nodes):
        back = node.id == index and all(-1 <= link < index for link in (node.parent, node.context))
        if not back or not -1 <= node.plan <= index:
            raise GraphError(f"node {index} of task {uid} has a link that does not point back.")
        if not 0 <= node.episode < len(episodes):
            raise GraphError(f"node {index} was sampled by episode {node.episode}, which the graph does not have.")
        _check_lengths(node)
        _check_names(node)
        if any(not 0 <= source < index for message in node.messages for source in message.sources):
            raise GraphError(f"a message of node {index} names a source that is not before it.")
    _check_turns(nodes)
    _check_contexts(nodes)
    _check_episodes(nodes, episodes)
    if credit and len(credit) != len(nodes):
        raise GraphError(f"the graph of task {uid} has {len(nodes)} nodes but the credit of {len(credit)}.")


def _check_lengths(node: Node) -> None:
    tokens = len(node.action)
    for name, what in (("logprobs", "log-probs"), ("entropy", "entropies"), ("top", "lists of likely tokens")):
        found = len(getattr(node, name))
        if found not in (0, tokens):
            raise GraphError(f"node {node.id} has {tokens} tokens but {found} {what}.")
    for name, spans in node.masks.items():
        if any(not 0 <= start <= stop <= tokens for start, stop in spans):
            raise GraphError(f"node {node.id}: the mask {name!r} has a span beyond the {tokens} tokens of the action.")
    low, high = node.policy_version
    if low > high:
        raise GraphError(f"node {node.id}: the lowest policy version is {low} and the highest {high}.")


def _check_names(node: Node) -> None:
    """Columns of workers and environments must not take the place of those that every table has."""
    for name in node.extra.keys() & TURN_COLUMNS.keys():
        raise GraphError(f"node {node.id}: `extra` has {name!r}, which is a column of every turn table; rename it.")
    for name in node.masks.keys() & set(TOKEN_COLUMNS):
        raise GraphError(f"node {node.id}: `masks` has {name!r}, which is a token column of its own; rename it.")


def _check_turns(nodes: Sequence[Node]) -> None:
    for node in nodes:
        before = None if node.parent < 0 else nodes[node.parent]
        turn = 0 if before is None else before.turn + (not before.partial)
        if node.turn != turn:
            raise GraphError(f"node {node.id} has turn {node.turn}, its parents make it {turn}.")
        if node.segment > len(nodes):
            raise GraphError(f"node {node.id} has segment {node.segment} of a graph of {len(nodes)} nodes.")
        unfinished = before is not None and before.partial
        if unfinished and (node.context != node.parent or node.observation or node.messages):
            raise GraphError(f"node {node.id} does not continue the tokens of the unfinished turn before it.")


def _check_contexts(nodes: Sequence[Node]) -> None:
    """A context lies on the path of its node, and its tokens are as many as the server saw."""
    first, size = subtrees([node.parent for node in nodes])
    length: list[int] = []
    turns: list[int] = []
    repeated = 0
    for node in nodes:
        prompt = len(node.observation)
        turns.append(1)
        if node.context >= 0:
            if not 0 <= first[node.id] - first[node.context] < size[node.context]:
                raise GraphError(f"node {node.id} continues the context of node {node.context}, which is not above it.")
            prompt += length[node.context]
            turns[node.id] += turns[node.context]
            repeated += turns[node.id] * (node.context != node.parent)
        length.append(prompt + len(node.action))
        if node.prompt_tokens and node.prompt_tokens != prompt:
            raise GraphError(f"node {node.id}: the stored tokens are not the {node.prompt_tokens} the server saw.")
    if repeated > MOST_STEPS:
        raise GraphError(f"the contexts of the graph have {repeated} turns together; at most {MOST_STEPS} are read.")


def subtrees(parents: Sequence[int]) -> tuple[list[int], list[int]]:
    """Places of the nodes when each is followed by everything below it, and the number of nodes in each subtree.

    Args:
        parents: of each node a smaller number, or -1.
    """
    size = [1] * len(parents)
    for node in range(len(parents) - 1, -1, -1):
        if parents[node] >= 0:
            size[parents[node]] += size[node]
    first: list[int] = []
    free: list[int] = []
    root = 0
    for node, parent in enumerate(parents):
        if parent < 0:
            first.append(root)
            root += size[node]
        else:
            first.append(free[parent])
            free[parent] += size[node]
        free.append(first[node] + 1)
    return first, size


def _check_episodes(nodes: Sequence[Node], episodes: Sequence[EpisodeRecord]) -> None:
    depth: list[int] = []
    for node in nodes:
        depth.append(1 if node.parent < 0 else depth[node.parent] + 1)
    depth.append(0)  # of none, whose number is -1
    steps = 0
    for index, episode in enumerate(episodes):
        if episode.id != index or not -1 <= episode.source < index or not -1 <= episode.leaf < len(nodes):
            raise GraphError(f"episode {index} has a link to what the graph does not have.")
        if not 0 <= episode.tree <= len(episodes):
            raise GraphError(f"episode {index} grows from root {episode.tree} of a graph of {len(episodes)} episodes.")
        source = -1 if episode.source < 0 else episodes[episode.source].leaf
        steps += depth[episode.leaf] + depth[source]
        if steps > MOST_STEPS:
            raise GraphError(f"the paths of the graph have more than {MOST_STEPS} turns together.")
        if episode.source < 0:
            continue
        mine = _ancestor(nodes, depth, episode.leaf, episode.shared)
        if mine is None or mine != _ancestor(nodes, depth, source, episode.shared):
            raise GraphError(f"episode {index} does not share {episode.shared} turns with its source.")


def _ancestor(nodes: Sequence[Node], depth: Sequence[int], leaf: int, turns: int) -> int | None:
    """The last of the first `turns` nodes of a path, -1 for none of them; None when the path is shorter.

    Args:
        depth: of each node, and 0 as the last entry, which is that of no node.
    """
    if not 0 <= turns <= depth[leaf]:
        return None
    while depth[leaf] > turns:
        leaf = nodes[leaf].parent
    return leaf
