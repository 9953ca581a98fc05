"""What is refused of a graph and of its light columns: the two agree on every link, number and span, at every bound."""

import copy
import random

import numpy as np
import pyarrow as pa
import pytest

from tests.fixtures import rollout_graphs
from tests.fixtures.random_graphs import random_graph
from verl_hier.errors import GraphError
from verl_hier.graph import EpisodeRecord, Node, RolloutGraph, invariants
from verl_hier.graph.columnar import checks
from verl_hier.graph.columnar.checks import check_columns
from verl_hier.graph.columnar.encode import encode
from verl_hier.graph.columnar.layout import NULLABLE, Columns

# What `check` refuses and the light columns do not show.
HEAVY = ("does not continue the tokens", "does not share", "log-probs", "source that is not", "to what the graph does")
ANOTHER = rollout_graphs.windowed()


def problem(check, *given):
    try:
        check(*given)
    except GraphError as error:
        return str(error)
    return None


def columns_of(*graphs):
    return encode([ANOTHER, *graphs])


def agree(graph, what):
    """Whether both refuse it, or neither; behind another task, so that numbers are counted within the task."""
    refused, columns = problem(graph.check), problem(check_columns, columns_of(graph))
    if columns is not None:
        assert refused is not None, (what, columns)
    elif refused is not None:
        assert any(words in refused for words in HEAVY), (what, refused)
    return refused is not None


def small_graph():
    """Two roots, a fork, contexts that start anew and branch, a turn in two pieces, masks."""
    graph = RolloutGraph(task={"uid": "u", "index": 0})
    for parent, context, turn, partial in (
        *((-1, -1, 0, False), (0, 0, 1, True), (1, 1, 1, False), (2, 0, 2, False)),
        *((0, -1, 1, False), (4, 4, 2, False), (-1, -1, 0, False)),
    ):
        number = len(graph.nodes)
        prompt = graph.chain(context) if context >= 0 else []
        seen = sum(len(graph.nodes[each].observation) + len(graph.nodes[each].action) for each in prompt)
        observation = [] if parent >= 0 and graph.nodes[parent].partial else [1] * (number + 1)
        graph.nodes.append(
            Node(
                number,
                parent,
                context,
                int(number > 3),
                "a",
                "r",
                number % 2,
                turn,
                number % 3,
                parent,
                observation,
                [7, 8],
                [],
            )
        )
        graph.nodes[-1].partial, graph.nodes[-1].masks = partial, {"switch": [[0, 1], [1, 2]]}
        graph.nodes[-1].prompt_tokens = seen + len(observation)
    for number, leaf in enumerate((3, 5, 6, -1)):
        record = EpisodeRecord(number, leaf=leaf, tree=int(number > 1), status="finished" if leaf >= 0 else "failed")
        graph.episodes.append(record)
    graph.episodes[1].source, graph.episodes[1].shared = 0, 1
    graph.check()
    return graph


@pytest.mark.parametrize("number", range(7))
def test_every_other_link_and_number_of_a_node_is_judged_alike(number):
    refused, kept = set(), set()
    for name in ("parent", "context", "plan", "episode", "level", "turn", "segment", "prompt_tokens"):
        for value in range(-2 if name in ("parent", "context", "plan", "episode") else 0, 9):
            graph = small_graph()
            setattr(graph.nodes[number], name, value)
            (refused if agree(graph, (number, name, value)) else kept).add(name)
    assert refused >= {"parent", "context", "plan", "episode", "turn"}
    assert kept >= {"plan", "episode", "level", "turn", "segment", "prompt_tokens"}


def test_every_other_end_of_an_episode_is_judged_alike():
    for number in range(4):
        for leaf in range(-1, 8):
            for tree in range(6):
                graph = small_graph()
                graph.episodes[number].leaf, graph.episodes[number].tree = leaf, tree
                agree(graph, (number, leaf, tree))
                assert problem(check_columns, columns_of(graph)) is None or leaf > 6 or tree > 4


@pytest.mark.parametrize("span", [[a, b] for a in range(-1, 4) for b in range(-1, 4)])
def test_spans_lie_within_their_action(span):
    graph = small_graph()
    graph.nodes[4].masks = {"other": [], "switch": [[0, 0], span]}
    assert agree(graph, span) == (not 0 <= span[0] <= span[1] <= 2)


@pytest.mark.parametrize("seed", range(60))
def test_random_graphs_are_judged_alike(seed):
    """As they are, and with a link or number of one node moved."""
    dice = random.Random(seed)
    graph = random_graph(seed)
    if not all(node.action for node in graph.nodes):
        return
    for node in graph.nodes:
        node.extra.pop("nothing", None)
    assert not agree(graph, seed)
    for _ in range(4 if graph.nodes else 0):
        changed = copy.deepcopy(graph)
        node, name = dice.choice(changed.nodes), dice.choice(("parent", "context", "plan", "turn", "prompt_tokens"))
        setattr(
            node,
            name,
            max(getattr(node, name) + dice.choice((-1, 1)), -1 if name in ("parent", "context", "plan") else 0),
        )
        agree(changed, (seed, node.id, name))


def steps_of(graph):
    """Turns on all paths, and of forks also those on the path of their source."""
    paths = [len(graph.path(episode.id)) for episode in graph.episodes]
    return sum(paths), sum(paths[episode.source] for episode in graph.episodes if episode.source >= 0)


@pytest.mark.parametrize(
    "make", [small_graph, rollout_graphs.forked, rollout_graphs.hierarchical, rollout_graphs.broken]
)
def test_paths_have_as_many_turns_as_are_visited(monkeypatch, make):
    graph = make()
    own, of_sources = steps_of(graph)
    for module, most, check in (
        (invariants, own + of_sources, graph.check),
        (checks, max(own, steps_of(ANOTHER)[0]), lambda: check_columns(columns_of(graph))),
    ):
        monkeypatch.setattr(module, "MOST_STEPS", most)
        check()
        monkeypatch.setattr(module, "MOST_STEPS", most - 1)
        with pytest.raises(GraphError, match=f"more than {most - 1} turns together"):
            check()


def test_contexts_that_start_anew_are_repeated(monkeypatch):
    """The turns of every context that is not that of the parent are read again."""
    graph = small_graph()
    repeated = sum(len(graph.chain(node.id)) for node in graph.nodes if 0 <= node.context != node.parent)
    assert repeated > 0
    for node in graph.nodes:
        node.episode = 0
    graph.episodes = graph.episodes[-1:]
    graph.episodes[0].id = 0
    monkeypatch.setattr(invariants, "MOST_STEPS", repeated)
    graph.check()
    monkeypatch.setattr(invariants, "MOST_STEPS", repeated - 1)
    with pytest.raises(GraphError, match=f"have {repeated} turns together; at most {repeated - 1} are read"):
        graph.check()


def test_no_episode_shares_less_than_nothing():
    graph = small_graph()
    graph.episodes[1].shared = -1
    with pytest.raises(GraphError, match="episode 1 does not share -1 turns with its source"):
        graph.check()


def test_a_fork_of_an_episode_without_a_turn_has_no_path_of_its_source(monkeypatch):
    graph = small_graph()
    graph.episodes.append(EpisodeRecord(4, source=3, leaf=6))
    monkeypatch.setattr(invariants, "MOST_STEPS", sum(steps_of(graph)))
    graph.check()


def test_episodes_without_a_turn_have_no_steps(monkeypatch):
    graph = small_graph()
    graph.episodes[3].leaf = 0
    own = sum(len(graph.path(episode.id)) for episode in graph.episodes)
    graph.episodes += [EpisodeRecord(number, status="failed") for number in range(4, 40)]
    before = small_graph()
    before.task["uid"], before.episodes[2].leaf = "before", -1
    del before.nodes[6]
    columns = encode([before, RolloutGraph(task={"uid": "empty"}, episodes=[EpisodeRecord(0)]), graph])
    monkeypatch.setattr(checks, "MOST_STEPS", own)
    check_columns(columns)
    monkeypatch.setattr(checks, "MOST_STEPS", own - 1)
    with pytest.raises(GraphError, match="turns together"):
        check_columns(columns)


def test_levels_and_actions_have_bounds():
    graph = small_graph()
    graph.nodes[2].level = 1000
    check_columns(columns_of(graph))
    graph.nodes[2].level = 1001
    with pytest.raises(GraphError, match="has a level out of bounds"):
        check_columns(columns_of(graph))
    graph = small_graph()
    graph.nodes[6].action, graph.nodes[6].masks = [], {}
    with pytest.raises(GraphError, match="has no action"):
        check_columns(columns_of(graph))


@pytest.mark.parametrize(
    ("where", "name"), [("extra", "reward"), ("extra", "turn"), ("masks", "turn"), ("masks", "value")]
)
def test_columns_of_every_table_are_not_replaced(where, name):
    graph = small_graph()
    getattr(graph.nodes[3], where)[name] = [[0, 1]] if where == "masks" else 1
    with pytest.raises(GraphError, match=f"`{where}` has '{name}'"):
        check_columns(columns_of(graph))
    with pytest.raises(GraphError, match=f"node 3: `{where}` has '{name}'"):
        graph.check()
    graph = small_graph()
    graph.nodes[3].extra, graph.nodes[3].masks = {"value": 1, "another": "x"}, {"reward": [[0, 1]]}
    assert not agree(graph, name)


def changed(columns, kind, name, values):
    table = getattr(columns, kind)
    column = pa.array(values, table.schema.field(name).type)
    tables = {each: getattr(columns, each) for each in ("tasks", "episodes", "nodes")}
    tables[kind] = table.set_column(table.column_names.index(name), table.schema.field(name), column)
    return Columns(**tables, heavy=columns.heavy)


def test_nulls_are_only_where_there_may_be_nothing_to_say():
    columns = columns_of(small_graph())
    for kind in ("tasks", "episodes", "nodes"):
        table = getattr(columns, kind)
        for name in table.column_names:
            other = changed(columns, kind, name, [*table[name].to_pylist()[:-1], None])
            found = problem(check_columns, other)
            assert (found is None) == (name in NULLABLE), name
            assert found is None or f"the column {name!r} of the {kind} has nulls" in found


@pytest.mark.parametrize("number", [np.inf, -np.inf, np.nan])
def test_numbers_are_finite_also_inside_of_lists(number):
    for kind, name, value in (
        ("nodes", "reward", number),
        ("nodes", "extra_float", [{"name": "judge", "value": 1.0}, {"name": "other", "value": number}]),
        ("episodes", "ret", number),
        ("episodes", "reward_info", [{"name": "accuracy", "value": number}]),
    ):
        columns = columns_of(small_graph())
        values = [*getattr(columns, kind)[name].to_pylist()[:-1], value]
        with pytest.raises(GraphError, match=f"{kind}.{name} has a number that is not finite"):
            check_columns(changed(columns, kind, name, values))
    columns = columns_of(small_graph())
    entropies = changed(columns, "nodes", "mean_entropy", [number] * len(columns.nodes))
    found = problem(check_columns, entropies)
    assert (found is None) == np.isnan(number)


def test_lists_have_no_nulls():
    columns = columns_of(small_graph())
    for kind, name, value in (
        ("nodes", "extra_int", [{"name": "count", "value": None}]),
        ("nodes", "extra_text", [None]),
        ("nodes", "masks", [{"name": "switch", "value": None}]),
        ("nodes", "masks", [{"name": "switch", "value": [{"start": 0, "stop": None}]}]),
        ("episodes", "reward_info", [{"name": None, "value": 1.0}]),
    ):
        values = [*getattr(columns, kind)[name].to_pylist()[:-1], value]
        with pytest.raises(GraphError, match=f"{kind}.{name} has nulls in its lists"):
            check_columns(changed(columns, kind, name, values))


@pytest.mark.parametrize("kind", ["nodes", "episodes"])
@pytest.mark.parametrize("change", [(1, 0), (0, -1), (1, -1), (-100, 100)])
def test_the_index_counts_what_there_is(kind, change):
    columns = columns_of(small_graph())
    counts = [count + more for count, more in zip(columns.tasks[kind].to_pylist(), change, strict=True)]
    words = "and the index says" if sum(change) or min(counts) < 0 else ""
    assert words in (problem(check_columns, changed(columns, "tasks", kind, counts)) or "")


def test_nothing_is_sound():
    check_columns(encode([]))
    check_columns(encode([RolloutGraph(task={"uid": "u"})]))
    graph = RolloutGraph(task={"uid": "u"}, episodes=[EpisodeRecord(0)])
    check_columns(columns_of(graph))
    graph.episodes[0].leaf = 0
    with pytest.raises(GraphError, match="ends with a node that its task does not have"):
        check_columns(columns_of(graph))
