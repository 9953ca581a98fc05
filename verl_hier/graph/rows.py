"""Rows for verl: token sequences cut from the rollout graph so that a shared context is trained once, not once a turn.

A row is a maximal chain of turns, each continuing the tokens of the one before. The prompt is what the first turn saw,
the response is everything after it: actions (mask 1 where trained) and later observations (mask 0).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from verl_hier.graph.nodes import EpisodeRecord, Node, RolloutGraph

SharedPrefix = Literal["once", "repeat", "average", "first_owner"]


@dataclass
class Row:
    """One token sequence. `L` is the length of the response.

    Attributes:
        episode: episode whose path it lies on.
        nodes: turns in it, in token order.
        prompt: token ids before the first action.
        response: (L,) token ids from the first action on.
        mask: (L,) 1 on action tokens that this row trains.
        logprobs: (L,) behaviour log p on action tokens, 0 elsewhere.
        turn_index: (L,) node id of the turn whose action token it is, -1 on observations; also for untrained actions.
    """

    episode: int
    nodes: list[int]
    prompt: list[int]
    response: list[int]
    mask: list[int]
    logprobs: list[float]
    turn_index: list[int]


def chains(graph: RolloutGraph, episode: int) -> list[list[int]]:
    """The turns of an episode, grouped into maximal token chains. A turn may open several; each turn ends up in one
    chain as its own, and in others as context."""
    path = graph.path(episode)
    successor: dict[int, int] = {}
    tails: list[int] = []
    for node in path:
        context = graph.nodes[node].context
        if context >= 0 and context not in successor:
            successor[context] = node
        elif context >= 0:
            tails.append(node)  # a second continuation of one context: its row repeats the shared tokens
    heads = [node for node in path if graph.nodes[node].context < 0]
    found: list[list[int]] = []
    for head in heads:
        found.append(_follow([head], successor))
    for tail in tails:
        found.append(_follow(graph.chain(tail), successor))
    return found


def _follow(chain: list[int], successor: dict[int, int]) -> list[int]:
    while chain[-1] in successor:
        chain.append(successor[chain[-1]])
    return chain


def owning_chains(graph: RolloutGraph) -> dict[int, int]:
    """Each turn of the complete episodes with the number of the chain that trains it, or the first one that does."""
    owner: dict[int, int] = {}
    every = (chain for episode in trained_first(graph) for chain in chains(graph, episode.id))
    for number, chain in enumerate(every):
        for node in chain:
            owner.setdefault(node, number)
    return owner


def trained_first(graph: RolloutGraph) -> list[EpisodeRecord]:
    """Complete episodes in the order in which they own shared turns: those that are trained before the others."""
    return sorted(graph.complete(), key=lambda episode: not episode.trained)


def graph_rows(graph: RolloutGraph, trained: Callable[[Node], bool], rule: SharedPrefix = "once") -> list[Row]:
    """Rows of all complete episodes of a task, grouped by episode; rows that train nothing are left out.

    Withheld leaves have none.

    Args:
        graph: a graph whose `check` passes.
        trained: whether the schedule trains a turn; turns with `trained=False` never are.
        rule: with `once` and `first_owner` a turn that several episodes share is trained in the first of them only;
            with `repeat` and `average` in each of them.
    """
    everywhere: set[int] = set()
    rows: list[Row] = []
    for episode in trained_first(graph):
        owned = set() if episode.trained and rule in ("repeat", "average") else everywhere
        for chain in () if episode.withheld else chains(graph, episode.id):
            mine = {i for i in chain if i not in owned and graph.nodes[i].trained and trained(graph.nodes[i])}
            owned.update(chain)
            everywhere.update(chain)
            if mine:
                rows.append(_row(graph, episode.id, chain, mine))
    return sorted(rows, key=lambda row: row.episode)


def leaf_row(graph: RolloutGraph, episode: int) -> Row:
    """The token sequence that ends with the leaf of an episode, with all its turns marked: what it is scored by.

    It need not be the last one that the episode opened, nor one that is trained.
    """
    leaf = graph.episodes[episode].leaf
    chain = next(chain for chain in chains(graph, episode) if chain[-1] == leaf)
    return _row(graph, episode, chain, set(chain))


def _row(graph: RolloutGraph, episode: int, chain: list[int], mine: set[int]) -> Row:
    first = graph.nodes[chain[0]]
    row = Row(episode, list(chain), list(first.observation), [], [], [], [])
    for position, index in enumerate(chain):
        node = graph.nodes[index]
        if position:
            _extend(row, node.observation, 0, [0.0] * len(node.observation), -1)
        logprobs = node.logprobs or [0.0] * len(node.action)
        _extend(row, node.action, int(index in mine), logprobs, index)
    return row


def _extend(row: Row, tokens: list[int], mask: int, logprobs: list[float], turn: int) -> None:
    row.response += tokens
    row.mask += [mask] * len(tokens)
    row.logprobs += logprobs
    row.turn_index += [turn] * len(tokens)
