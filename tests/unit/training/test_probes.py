"""Probes: what stands in front of each turn is asked about, and answers reach the turns that they are of."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.conformance.builtin_parts import plugin_module
from tests.fixtures import rollout_graphs
from tests.fixtures.byte_model import write_byte_model
from tests.fixtures.light import sent
from verl_hier.credit import Credit
from verl_hier.errors import CreditError
from verl_hier.graph import RolloutGraph
from verl_hier.host.manager import DEFAULT_ENABLED, PluginHost
from verl_hier.host.part import Part
from verl_hier.host.specs import EstimatorSpec, NoOptions
from verl_hier.training.ledger import Ledger
from verl_hier.training.options import GuardOptions
from verl_hier.training.probes import Asked, Contexts, Question, followers
from verl_hier.training.schedule import Phase
from verl_hier.training.step import TrainingStep, train_step
from verl_hier_plugins.schedules.joint import Joint, JointOptions


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(write_byte_model(tmp_path_factory.mktemp("model")))


def asked_of(
    graph: RolloutGraph, tokenizer: Any, task: dict[str, Any] | None = None
) -> tuple[Contexts, Ledger, list[str]]:
    light, keys, rows = sent([graph])
    ledger = Ledger(light, keys)
    sequences = [np.asarray(row.prompt + row.response) for _, row in rows]
    return Contexts(ledger, sequences, [task or {"answers": ["ab", "c"]}], tokenizer), ledger, keys


class Letters:
    """A tokenizer that knows no places in texts and does not say whether it is a fast one."""

    chat_template = None

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        return [ord(letter) for letter in text]


@pytest.mark.parametrize("letters", [False, True])
@pytest.mark.parametrize("texts", [("ab", "cd", "e"), ("", "x", ""), ("a", "", "b")])
def test_the_tokens_of_a_text_in_the_middle_are_known(
    letters: bool, texts: tuple[str, str, str], tokenizer: Any
) -> None:
    contexts, _, _ = asked_of(rollout_graphs.flat(), Letters() if letters else tokenizer)
    tokens, mine = contexts.encode_within(*texts)
    assert len(tokens) == sum(map(len, texts))
    assert tokens[mine].tolist() == contexts.encode(texts[1]).tolist()


def probe(name: str, **options: Any) -> Any:
    spec = PluginHost.load(DEFAULT_ENABLED).specs("probe")[name]
    return spec.factory(spec.options(**options))


def context_of(graph: RolloutGraph, number: int) -> list[int]:
    """What stood before a node, slowly: its chain of contexts."""
    chain, node = [], graph.nodes[number]
    while node.context >= 0:
        node = graph.nodes[node.context]
        chain.append(node)
    before = [token for node in reversed(chain) for token in [*node.observation, *node.action]]
    return before + list(graph.nodes[number].observation)


@pytest.mark.parametrize("kind", ["flat", "windowed", "forked", "hierarchical"])
def test_contexts_are_what_the_policy_saw(kind: str, tokenizer: Any) -> None:
    graph = rollout_graphs.ROLLED_OUT[kind]()
    contexts, ledger, _ = asked_of(graph, tokenizer)
    node_of = {turn: node for node, turn in enumerate(ledger._turn_of[0].tolist()) if turn >= 0}
    there = np.flatnonzero(contexts.there)
    assert len(there) >= 3 and there.tolist() == sorted({*ledger.turn.tolist()} - {-1})
    for turn in there.tolist():
        node = graph.nodes[node_of[turn]]
        assert contexts.before(turn).tolist() == context_of(graph, node_of[turn])
        assert contexts.action(turn).tolist() == node.action
        assert contexts.observed[turn] == (len(node.observation) if node.context >= 0 else 0)


def test_turns_of_roles_that_do_not_learn_stand_nowhere(tokenizer: Any) -> None:
    graph = rollout_graphs.hierarchical()
    graph.phase = Phase("B", levels=frozenset({1})).to_dict()
    contexts, ledger, _ = asked_of(graph, tokenizer)
    there = np.isin(np.arange(len(ledger.table)), ledger.turn)
    assert contexts.there.tolist() == there.tolist() and there.any() and not there.all()
    assert (contexts.observed[~there] == -1).all() and (contexts.observed[there] >= 0).all()


def test_the_true_answer_is_asked_for_in_front_of_every_turn(tokenizer: Any) -> None:
    contexts, ledger, _ = asked_of(rollout_graphs.flat(), tokenizer)
    asker = probe("true_answer", prefix="<a>", suffix="</a>")
    questions = asker.ask(contexts)
    assert [question.turn for question in questions] == list(range(len(ledger.table)))
    for question in questions:
        assert tokenizer.decode(question.text.tolist()) == "<a>ab</a>"
        assert tokenizer.decode(question.text[question.counted].tolist()) == "ab"
        np.testing.assert_array_equal(question.context, contexts.before(question.turn))
    # The first episode becomes surer by 0.1 a turn; the other one knows nothing.
    table = ledger.table
    episode, depth = np.asarray(table["episode"]), np.asarray(table["depth"])
    sure = np.where(episode == 0, 0.1 * (depth + 1), 1e-3)
    answers = [np.full(2, np.log(sure[question.turn])) for question in questions]
    gain = asker.read(table, questions, answers)["info_gain"]
    last = np.isin(np.arange(len(table)), table["episodes.leaf"])
    np.testing.assert_allclose(gain, np.where((episode == 0) & ~last, 0.1, 0.0), atol=1e-12)
    logs = probe("true_answer", measure="log_probability").read(table, questions, answers)["info_gain"]
    np.testing.assert_allclose(
        logs, np.where((episode == 0) & ~last, np.log((depth + 2) / (depth + 1)), 0.0), atol=1e-12
    )


def test_gains_of_a_shared_turn_are_the_mean_over_what_follows(tokenizer: Any) -> None:
    contexts, ledger, _ = asked_of(rollout_graphs.forked(), tokenizer)
    asker, table = probe("true_answer"), ledger.table
    questions = asker.ask(contexts)
    sure = np.random.default_rng(0).uniform(0.1, 0.9, len(table))
    gain = asker.read(table, questions, [np.log(sure[[question.turn]]) for question in questions])["info_gain"]
    parent = np.asarray(table["parent"])
    assert (np.bincount(parent[parent >= 0]) > 1).any()
    for turn in range(len(table)):
        children = np.flatnonzero(parent == turn)
        expected = np.mean(sure[children] - sure[turn]) if len(children) else 0.0
        assert gain[turn] == pytest.approx(expected)


@pytest.mark.parametrize("placeholder", ["no", "nothing was found, and more than that would not fit into the place"])
def test_feedback_is_replaced_at_equal_length(placeholder: str, tokenizer: Any) -> None:
    contexts, ledger, _ = asked_of(rollout_graphs.flat(), tokenizer)
    asker = probe("feedback", placeholder=placeholder)
    questions = asker.ask(contexts)
    later = np.flatnonzero(np.asarray(ledger.table["depth"]) > 0)
    assert [question.turn for question in questions] == later.tolist()
    for question in questions:
        seen, length = contexts.before(question.turn), int(contexts.observed[question.turn])
        assert len(question.context) == len(seen)
        assert question.context[:-length].tolist() == seen[:-length].tolist()
        ids = tokenizer.encode(placeholder)[:length]
        assert question.context[-length:].tolist() == ids + ids[-1:] * (length - len(ids))
        assert question.text.tolist() == contexts.action(question.turn).tolist()


def test_the_opening_of_a_turn_is_kept(tokenizer: Any) -> None:
    opening = tokenizer.encode("<|im_start|>assistant\n")
    graph = rollout_graphs.flat()
    for node in graph.nodes:
        node.observation = [*node.observation, *opening]
        node.prompt_tokens = 0
    contexts, _, _ = asked_of(graph, tokenizer)
    assert contexts.generation_prompt.tolist() == opening
    for question in probe("feedback").ask(contexts):
        assert question.context[-len(opening) :].tolist() == opening


def test_gain_of_feedback_goes_to_the_turn_that_brought_it_about(tokenizer: Any) -> None:
    contexts, ledger, _ = asked_of(rollout_graphs.flat(), tokenizer)
    table, asker = ledger.table, probe("feedback")
    questions = asker.ask(contexts)
    table.tokens["old_logprob"] = np.full(len(table["tokens.turn"]), -1.0)
    depth = np.asarray(table["depth"])
    answers = [np.full(len(question.text), -1.0 - depth[question.turn]) for question in questions]
    gain = asker.read(table, questions, answers)["feedback_gain"]
    last = np.isin(np.arange(len(table)), table["episodes.leaf"])
    np.testing.assert_allclose(gain, np.where(last, 0.0, depth + 1.0))


def test_what_cannot_be_asked_is_a_sentence(tokenizer: Any) -> None:
    contexts, _, _ = asked_of(rollout_graphs.flat(), tokenizer, {"instruction": "go"})
    with pytest.raises(CreditError, match="needs a true answer"):
        probe("true_answer").ask(contexts)
    windows, _, _ = asked_of(rollout_graphs.windowed(), tokenizer)
    with pytest.raises(CreditError, match="keep their history"):
        probe("feedback").ask(windows)


@pytest.mark.parametrize(
    ("task", "answer"),
    [
        ({"answers": ["a", "b"]}, "a"),
        ({"answer": 7}, "7"),
        ({"reward_model": {"ground_truth": "x"}}, "x"),
        ({"reward_model": {"ground_truth": {"target": np.array(["y", "z"], object)}}}, "y"),
        ({"reward_model": {"ground_truth": ""}}, ""),
        ({"answers": []}, ""),
        ({}, ""),
    ],
)
def test_where_a_true_answer_stands(task: dict[str, Any], answer: str) -> None:
    assert plugin_module("probes.true_answer").true_answer(task) == answer


class Loud:
    """Says how many questions it had."""

    def __init__(self, columns: Any) -> None:
        self._columns = columns

    def ask(self, contexts: Contexts) -> list[Question]:
        return []

    def read(self, table: Any, questions: Any, answers: Any) -> Any:
        return self._columns(table)


def step_with(columns: Any) -> tuple[dict[str, float], Any]:
    graph = rollout_graphs.flat()
    light, keys, rows = sent([graph])
    seen: dict[str, Any] = {}

    def estimate(table: Any, options: Any) -> Credit:
        seen["loud"] = np.array(table["loud"])
        return Credit(np.zeros(len(table)))

    question = Question(0, np.arange(3), np.arange(2))
    metrics: dict[str, float] = {}
    train_step(
        TrainingStep(light, keys),
        keys=keys,
        columns={"response_mask": [np.array(row.mask, float) for _, row in rows]},
        host=PluginHost([]),
        estimator=Part(EstimatorSpec("reader", estimate, NoOptions, requires=("loud",)), NoOptions()),
        guards=GuardOptions(),
        schedule=Joint(JointOptions()),
        number=1,
        metrics=metrics,
        probed=[Asked("loud", ("loud",), Loud(columns), [question], [np.array([-1.0, -3.0])])],
    )
    return metrics, seen["loud"]


def test_the_estimator_reads_what_a_probe_fills() -> None:
    metrics, seen = step_with(lambda table: {"loud": np.arange(len(table))})
    assert seen.tolist() == list(range(len(seen)))
    assert metrics["hier/probes/loud/questions"] == 1 and metrics["hier/probes/loud/tokens"] == 5
    assert metrics["hier/probes/loud/logprob_mean"] == -2.0
    for wrong in (lambda table: {}, lambda table: {"loud": np.zeros(1)}, lambda table: {"low": np.zeros(len(table))}):
        with pytest.raises(CreditError, match="probe 'loud' must fill loud"):
            step_with(wrong)


def test_followers_stay_with_their_agent() -> None:
    contexts_table = Ledger(*sent([rollout_graphs.hierarchical()])[:2]).table
    agent, episode = np.asarray(contexts_table["agent"]), np.asarray(contexts_table["episode"])
    pairs = list(followers(contexts_table))
    assert pairs and len(set(pairs)) == len(pairs)
    for turn, later in pairs:
        assert agent[turn] == agent[later] and contexts_table["depth"][turn] < contexts_table["depth"][later]
    assert len(np.unique(episode)) > 1
