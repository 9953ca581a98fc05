"""The turn table of a batch, read off its rollout graphs: one pass over the nodes for each column, the rest on arrays.

Shapes: G graphs, M nodes, T turns of the table, E complete episodes, S steps, N action tokens.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import chain
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from verl_hier.graph.nodes import EpisodeRecord, Node, RolloutGraph
from verl_hier.graph.paths import Ints, Paths, chain_numbers, first_of, paths_to
from verl_hier.graph.turn_table import Array, TurnTable

Learns = Callable[[str, int], bool]
"""Whether the turns of a role on a level are trained."""
_CUT = ("length", "aborted")
"""Reasons of a server to stop that leave a turn incomplete."""


def build_table(graphs: Sequence[RolloutGraph]) -> TurnTable:
    """The turn table of several tasks, all turns trained that may be; see `number_turns`."""
    return number_turns(graphs)[0]


def number_turns(
    graphs: Sequence[RolloutGraph], learns: Sequence[Learns] | None = None
) -> tuple[TurnTable, list[Ints]]:
    """The turn table of several tasks, and which turn of it each node became.

    Turns of failed or pruned episodes are left out unless a complete episode shares them.

    Args:
        graphs: graphs whose `check` passes.
        learns: for each graph, what the schedule trains in this step; everything when omitted.

    Returns:
        the table, and for each graph an array with the turn of each of its nodes, -1 for nodes that are left out.
    """
    nodes = [node for graph in graphs for node in graph.nodes]
    sizes = _numbers([len(graph.nodes) for graph in graphs])
    ends = np.cumsum(sizes)
    offset = np.repeat(ends - sizes, sizes)
    parent, context, plan = (_link(_column(nodes, name), offset) for name in ("parent", "context", "plan"))
    complete = [(number, episode) for number, graph in enumerate(graphs) for episode in graph.complete()]
    group = _numbers([number for number, _ in complete])
    leaves = _column([episode for _, episode in complete], "leaf") + (ends - sizes)[group]
    paths = paths_to(leaves, parent)
    used = np.zeros(len(nodes), bool)
    used[paths.node] = True
    turn_of = np.where(used, np.cumsum(used) - 1, -1)
    parts = np.split(turn_of, ends[:-1]) if len(graphs) else []
    if not used.any():
        return TurnTable({}, {}, paths.episode, paths.node, names={"agent": (), "role": (), "source": ()}), parts
    chosen = np.flatnonzero(used)
    kept = [nodes[place] for place in chosen]
    episodes, sources = _episode_columns(graphs, complete, group, turn_of[leaves], paths)
    turns, names, anchors = _node_columns(kept)
    turns["group"] = np.repeat(np.arange(len(graphs)), sizes)[chosen]
    for name, link in (("parent", parent), ("plan", plan)):
        turns[name] = np.where(link[chosen] >= 0, turn_of[link[chosen]], -1)
    step_turn = turn_of[paths.node]
    turns["episode"] = first_of(step_turn, paths.episode, len(kept))
    turns["depth"] = first_of(step_turn, paths.place, len(kept))
    turns["leaves"] = np.bincount(step_turn)
    turns["return"] = _means(episodes["return"][paths.episode], step_turn)
    turns["row"] = _rows(leaves, parent, context, episodes, turn_of, turns["group"])
    offered = np.bincount(step_turn, ~episodes["withheld"][paths.episode]) > 0
    turns["trained"] &= offered & _learning(turns, names["role"], learns)
    tokens = _token_columns(kept, turns["n_tokens"])
    turns["entropy"] = _entropies(kept, tokens, turns["n_tokens"])
    turns |= _extra_columns(kept)
    table = TurnTable(turns, episodes, paths.episode, step_turn, tokens, names | {"source": sources}, anchors)
    return table, parts


def _numbers(values: Sequence[int]) -> Ints:
    return np.asarray(values, dtype=np.int64)


def _column(records: Sequence[Any], name: str, dtype: Any = np.int64) -> Array:
    """One attribute of many records."""
    return np.fromiter(map(attrgetter(name), records), dtype, len(records))


def _link(link: Ints, offset: Ints) -> Ints:
    return np.where(link >= 0, link + offset, -1)


def _codes(values: Iterable[Hashable], count: int) -> tuple[Ints, tuple[Any, ...]]:
    """Values as numbers in the order in which they come up, and what the numbers stand for."""
    known: defaultdict[Hashable, int] = defaultdict()
    known.default_factory = known.__len__
    return np.fromiter(map(known.__getitem__, values), np.int64, count), tuple(known)


def _episode_columns(
    graphs: Sequence[RolloutGraph],
    complete: Sequence[tuple[int, EpisodeRecord]],
    group: Ints,
    leaf: Ints,
    paths: Paths,
) -> tuple[dict[str, Array], tuple[str, ...]]:
    trees = _numbers([1 + max((episode.tree for episode in graph.episodes), default=0) for graph in graphs])
    tasks = _numbers([int(graph.task.get("index", number)) for number, graph in enumerate(graphs)])
    named = (str(graphs[number].task.get("data_source", "unknown")) for number in group)
    source, sources = _codes(named, len(group))
    records = [episode for _, episode in complete]
    success = [np.nan if episode.success is None else float(episode.success) for episode in records]
    columns: dict[str, Array] = {
        "group": group,
        "return": _column(records, "ret", np.float64),
        "success": np.asarray(success, np.float64),
        "leaf": leaf,
        "tree": (np.cumsum(trees) - trees)[group] + _column(records, "tree"),
        "trained": _column(records, "trained", bool),
        "withheld": _column(records, "withheld", bool),
        "turns": np.bincount(paths.episode, minlength=len(records)),
        "task": tasks[group],
        "source": source,
    }
    return columns, sources


def _node_columns(nodes: Sequence[Node]) -> tuple[dict[str, Array], dict[str, tuple[str, ...]], tuple[str, ...]]:
    """The columns that each node has for itself, the names of agents and roles, and those of anchors."""
    count = len(nodes)
    agent, agents = _codes(map(attrgetter("agent"), nodes), count)
    role, roles = _codes(map(attrgetter("role"), nodes), count)
    named = [place for place, node in enumerate(nodes) if node.anchor is not None]
    anchor = np.full(count, -1)
    anchor[named], anchors = _codes((nodes[place].anchor for place in named), len(named))
    columns: dict[str, Array] = {"agent": agent, "role": role}
    columns |= {name: _column(nodes, name) for name in ("level", "turn", "segment")}
    columns |= {"reward": _column(nodes, "reward", np.float64)}
    columns |= {name: _column(nodes, name, bool) for name in ("done", "truncated", "valid", "trained")}
    columns["complete"] = np.fromiter((node.stop_reason not in _CUT for node in nodes), bool, count)
    columns["n_tokens"] = np.fromiter(map(len, map(attrgetter("action"), nodes)), np.int64, count)
    columns["n_prompt"] = np.fromiter(map(len, map(attrgetter("observation"), nodes)), np.int64, count)
    columns["anchor"] = anchor
    return columns, {"agent": agents, "role": roles}, anchors


def _means(values: NDArray[np.float64], turn: Ints) -> NDArray[np.float64]:
    """(T,) mean of step values over each turn, as `numpy.mean` of a list has it, which adds in an order of its own."""
    count = np.bincount(turn)
    ordered = values[np.argsort(turn, kind="stable")]
    start = np.cumsum(count) - count
    means = np.empty(len(count))
    for size in np.unique(count):
        chosen = np.flatnonzero(count == size)
        means[chosen] = ordered[start[chosen, None] + np.arange(size)].mean(axis=1)
    return means


def _rows(
    leaves: Ints, parent: Ints, context: Ints, episodes: dict[str, Array], turn_of: Ints, group_of_turn: Ints
) -> Ints:
    """(T,) number of the chain that trains each turn, or of the first one that does; see `rows.owning_chains`."""
    group = episodes["group"]
    order = np.lexsort((~episodes["trained"], group))
    paths = paths_to(leaves[order], parent)
    numbers = chain_numbers(paths, context, group[order])
    own = first_of(turn_of[paths.node], numbers, len(group_of_turn))
    rows = np.zeros(1 + group.max(), np.int64)
    np.maximum.at(rows, group_of_turn, own)
    rows += 1
    found: Ints = own + (np.cumsum(rows) - rows)[group_of_turn]
    return found


def _learning(turns: dict[str, Array], roles: Sequence[str], learns: Sequence[Learns] | None) -> Array:
    """(T,) whether the schedule trains the role and level of each turn; it is asked once for each of them."""
    if learns is None:
        return np.ones(len(turns["role"]), bool)
    levels, level = np.unique(turns["level"], return_inverse=True)
    kind = (turns["group"] * len(roles) + turns["role"]) * len(levels) + level
    kinds, kind = np.unique(kind, return_inverse=True)
    rest, level = np.divmod(kinds, len(levels))
    group, role = np.divmod(rest, len(roles))
    asked = zip(group.tolist(), role.tolist(), levels[level].tolist(), strict=True)
    return np.asarray([learns[place](roles[number], height) for place, number, height in asked], bool)[kind]


def _token_columns(nodes: Sequence[Node], count: Ints) -> dict[str, Array]:
    columns: dict[str, Array] = {"turn": np.repeat(np.arange(len(nodes)), count)}
    columns["logprob"], _ = _token_numbers(nodes, "logprobs", count, np.nan)
    entropy, known = _token_numbers(nodes, "entropy", count, 0.0)
    found: dict[str, tuple[int, Array]] = {"entropy": (int(known.argmax()), entropy)} if known.any() else {}
    start = np.cumsum(count) - count
    for place, node in enumerate(nodes):
        for name, spans in node.masks.items():
            _, mask = found.setdefault(name, (place, np.zeros(len(entropy), bool)))
            for first, stop in spans:
                mask[start[place] + first : start[place] + stop] = True
    # Columns are in the order in which nodes bring them up.
    return columns | {name: column for name, (_, column) in sorted(found.items(), key=lambda item: item[1][0])}


def _token_numbers(nodes: Sequence[Node], name: str, count: Ints, missing: float) -> tuple[Array, Array]:
    """(N,) the numbers of each token, `missing` for nodes without them, and (T,) whether a node has them."""
    lists = [getattr(node, name) for node in nodes]
    known = np.fromiter(map(bool, lists), bool, len(nodes))
    numbers = np.fromiter(chain.from_iterable(lists), np.float64, int(count[known].sum()))
    if known.all():
        return numbers, known
    column = np.full(int(count.sum()), missing)
    column[np.repeat(known, count)] = numbers
    return column, known


def _entropies(nodes: Sequence[Node], tokens: dict[str, Array], count: Ints) -> Array:
    """(T,) mean entropy of each turn, and mean -log p where the server gave no entropies.

    A sum adds its terms one after the other on every version of Python, whose own `sum` has changed.
    """
    values = -tokens["logprob"]
    known = np.fromiter((bool(node.logprobs) for node in nodes), bool, len(nodes))
    if "entropy" in tokens:
        given = np.fromiter((bool(node.entropy) for node in nodes), bool, len(nodes))
        values = np.where(np.repeat(given, count), tokens["entropy"], values)
        known |= given
    sums = np.bincount(tokens["turn"], values, len(nodes))
    return np.where(known, sums / np.maximum(count, 1), np.nan)


def _extra_columns(nodes: Sequence[Node]) -> dict[str, Array]:
    """The numbers that workers and environments have noted; NaN for turns without them."""
    found: dict[str, tuple[list[int], list[int | float]]] = {}
    for place, node in enumerate(nodes):
        for name, value in node.extra.items():
            if isinstance(value, int | float):
                places, values = found.setdefault(name, ([], []))
                places.append(place)
                values.append(value)
    columns = {}
    for name, (places, values) in found.items():
        if len(places) == len(nodes):
            columns[name] = np.asarray(values)
        else:
            columns[name] = np.full(len(nodes), np.nan, np.asarray([*values, np.nan]).dtype)
            columns[name][places] = values
    return columns
