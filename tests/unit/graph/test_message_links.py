"""Who saw what, over random trees: against the definition, and whatever is renumbered or cut in pieces."""

import copy

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fixtures import rollout_graphs
from verl_hier.graph import Message, RolloutGraph, messages, who_saw

quick = settings(max_examples=60, deadline=None)


def saw(graph, other, node):
    """The definition, plainly: `node` is a piece of an earlier turn of the context, or of one that a message names."""
    chain = graph.chain(other)
    sources = {s for number in chain for message in graph.nodes[number].messages for s in message.sources}
    pieces = {piece.id for source in sources for piece in graph.pieces(graph.nodes[source])}
    own = {piece.id for piece in graph.pieces(graph.nodes[other])}
    return node not in own and node in pieces | set(chain[:-1])


def split_one(graph, data):
    """Cut a node of at least two tokens, if there is one; returns the number of the first part."""
    long = [node for node in graph.nodes if len(node.action) > 1]
    if not long:
        return None
    node = data.draw(st.sampled_from(long))
    return graph.split(node, data.draw(st.integers(1, len(node.action) - 1))).id


@quick
@given(rollout_graphs.trees(), st.data())
def test_who_saw_is_its_definition_also_for_pieces(graph, data):
    for _ in range(data.draw(st.integers(0, 2))):
        split_one(graph, data)
    graph.check()
    for node in graph.nodes:
        found = who_saw(graph, node.id)
        assert found == [other.id for other in graph.nodes if saw(graph, other.id, node.id)]


@quick
@given(rollout_graphs.trees(), st.data())
def test_a_cut_changes_no_message(graph, data):
    before = copy.deepcopy(graph)
    first = split_one(graph, data)
    if first is None:
        return

    def now(number):
        return number + (number >= first)

    assert messages(graph) == [
        (now(sender), now(receiver) - (receiver == first)) for sender, receiver in messages(before)
    ]
    for node in before.nodes:
        seen = who_saw(graph, now(node.id))
        assert {other for other in seen if not graph.nodes[other].partial} == {
            now(other) for other in who_saw(before, node.id)
        }
    assert not graph.nodes[first + 1].messages


@quick
@given(rollout_graphs.trees(), st.randoms(use_true_random=False))
def test_sorting_renumbers_sources(graph, chance):
    """As when episodes run side by side: nodes come in any order in which links point back."""
    mixed = shuffled(graph, chance)
    words = {node.text: spoken(mixed, node) for node in mixed.nodes}
    mixed.sort()
    mixed.check()
    assert (
        {node.text: spoken(mixed, node) for node in mixed.nodes}
        == words
        == {node.text: spoken(graph, node) for node in graph.nodes}
    )


def spoken(graph, node):
    """What a node heard, and whose words they are, without numbers."""
    return [(m.role, m.content, [graph.nodes[s].text for s in m.sources]) for m in node.messages]


def shuffled(graph, chance) -> RolloutGraph:
    mixed = copy.deepcopy(graph)
    keys: list[float] = []
    for node in mixed.nodes:
        keys.append(chance.random() + (keys[node.parent] if node.parent >= 0 else 0.0))
    order = sorted(range(len(keys)), key=keys.__getitem__)
    place = {number: new for new, number in enumerate(order)} | {-1: -1}
    for node in mixed.nodes:
        node.id, node.parent = place[node.id], place[node.parent]
        node.context, node.plan = place[node.context], place[node.plan]
        for message in node.messages:
            message.sources = [place[source] for source in message.sources]
    for episode in mixed.episodes:
        episode.leaf = place[episode.leaf]
    mixed.nodes.sort(key=lambda node: node.id)
    return mixed


@quick
@given(rollout_graphs.trees())
def test_messages_go_between_contexts_and_are_seen(graph):
    pairs = messages(graph)
    assert len(set(pairs)) == len(pairs)
    for sender, receiver in pairs:
        assert receiver in who_saw(graph, sender)
        assert sender not in graph.chain(receiver)
        assert not any((sender, earlier) in pairs for earlier in graph.chain(receiver)[:-1])
    for node in graph.nodes:
        for source in (s for message in node.messages for s in message.sources):
            chain = graph.chain(node.id)
            assert source in chain or any((source, number) in pairs for number in chain)


def test_own_words_in_a_context_rendered_anew_are_no_message():
    graph = rollout_graphs.windowed()
    graph.nodes[1].messages = [Message("assistant", "right", [0]), Message("user", "go", [])]
    assert messages(graph) == [] and who_saw(graph, 0) == [1]


def test_a_graph_of_version_1_says_what_contexts_say():
    graph = rollout_graphs.hierarchical()
    for node in graph.nodes:
        node.messages = []
    assert messages(graph) == []
    assert who_saw(graph, 1) == [node.id for node in graph.nodes if 1 in graph.chain(node.id)[:-1]]
