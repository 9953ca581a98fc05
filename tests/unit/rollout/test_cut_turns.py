"""A turn is cut if its tokens end neither with an end token nor at a stop string, whatever a server calls it."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from tests.fixtures.byte_model import write_byte_model
from verl_hier.chat.end_ids import end_ids
from verl_hier.chat.renderer import ChatRenderer
from verl_hier.chat.template import ChatTemplate
from verl_hier.graph import RolloutGraph, build_table
from verl_hier.graph.columnar.light import light_of
from verl_hier.graph.records import CUT
from verl_hier.rollout import Sampler, Worker
from verl_hier.rollout.plain_renderer import PlainRenderer, completes
from verl_hier.served.policy import Messages
from verl_hier.testing.rollout import CharacterTokenizer, ScriptedPolicy, roll_out_scripted
from verl_hier.training.metrics import cut_metrics


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_byte_model(tmp_path_factory.mktemp("byte_model"), hidden=8, layers=1)


@pytest.fixture
def byte_tokenizer(model):
    return AutoTokenizer.from_pretrained(model)


WORDS = [None, "completed", "stop", "length", "aborted", "abort", "eos", "whatever"]
"""What servers of verl and of others call the end of an answer, and what none does."""


class Says(Worker):
    """Two roles take turns."""

    async def run(self, episode):
        step = await episode.reset()
        contexts = [episode.context(role) for role in ("first", "second")]
        for turn in range(6):
            said = await episode.generate(contexts[turn % 2].observe(step.text), stop=("</a>",))
            said.mark(says_complete=int(said.complete))
            step = await episode.act("nothing")


class InTurn(Sampler):
    """Episodes one after the other, so that what is said comes in the order of the nodes."""

    async def sample(self, rollout):
        for _ in range(rollout.n):
            await rollout.start().run()


class Unsteady(ScriptedPolicy):
    """Cuts some answers before their end token, completes a stop string in others, and calls each of them anything."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.whole, self.dice = [], random.Random(0)

    async def generate(self, prompt, sampling, conversation):
        made = await super().generate(prompt, sampling, conversation)
        kind = self.dice.choice(["end", "stop", "cut", "cut before the stop"])
        tokens = {
            "end": made.token_ids,
            "stop": self.tokenizer.encode("x</a>"),
            "cut": made.token_ids[:-1],
            "cut before the stop": self.tokenizer.encode("x</a"),
        }[kind]
        self.whole.append(kind in ("end", "stop"))
        return replace(made, token_ids=tokens, logprobs=[-0.5] * len(tokens), stop_reason=self.dice.choice(WORDS))


def test_what_says_that_a_turn_was_cut_agrees():
    graph, policy = asyncio.run(
        roll_out_scripted(
            worker=Says,
            answer=lambda *_: "word",
            sampler=InTurn(),
            tokenizer=CharacterTokenizer(),
            policy=Unsteady,
            n=40,
        )
    )
    by_turn = [node.stop_reason not in CUT for node in graph.nodes]
    assert by_turn == policy.whole and 50 < sum(by_turn) < len(by_turn) - 50
    assert [bool(node.extra["says_complete"]) for node in graph.nodes] == by_turn
    assert build_table([graph])["complete"].astype(bool).tolist() == by_turn
    nodes = light_of([graph], [[]], frozenset()).columns.nodes
    expected = {
        f"hier/turns/cut_share/{role}": sum(
            not whole for node, whole in zip(graph.nodes, by_turn, strict=True) if node.role == role
        )
        / sum(node.role == role for node in graph.nodes)
        for role in ("first", "second")
    }
    found = cut_metrics(nodes)
    assert found.pop("hier/turns/cut_share") == pytest.approx(1 - sum(by_turn) / len(by_turn))
    assert found == pytest.approx(expected)


def test_no_turns_have_no_share_of_roles():
    assert cut_metrics(light_of([RolloutGraph(task={"uid": "u", "index": 0})], [[]], frozenset()).columns.nodes) == {
        "hier/turns/cut_share": 0.0
    }


SHARED = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
"""The tokenizer is made once for all examples of a test."""
TEXTS = st.text(st.sampled_from("ab</>\n é🙂"), max_size=12)


@SHARED
@given(TEXTS, st.lists(st.text(st.sampled_from("ab</>\n é"), min_size=1, max_size=4), max_size=3), st.data())
def test_a_stop_string_is_completed_by_the_token_that_a_server_stops_at(byte_tokenizer, text, stop, data):
    tokens = byte_tokenizer.encode(text, add_special_tokens=False)

    def seen(count):
        return byte_tokenizer.decode(tokens[:count], skip_special_tokens=True)

    first = next((count for count in range(len(tokens) + 1) if any(each in seen(count) for each in stop)), None)
    for count in range(len(tokens) + 1 if first is None else first):
        assert not completes(byte_tokenizer, tokens[:count], stop)
    assert first is None or completes(byte_tokenizer, tokens[:first], stop)


def test_the_last_token_may_have_characters_behind_the_stop_string():
    class Words:
        def decode(self, tokens, skip_special_tokens=False):
            return "".join(tokens)

    assert completes(Words(), ["go", "</a", ">\n\n"], ["</a>"])
    assert not completes(Words(), ["go", "</a>", "\n\n"], ["</a>"])
    assert completes(Words(), ["</a>", "x</a>"], ["</a>"])


class Source:
    def __init__(self, eos_token_id):
        self.eos_token_id = eos_token_id


@given(st.lists(st.none() | st.integers(0, 9) | st.lists(st.integers(0, 9), max_size=3), max_size=3))
def test_end_ids_are_those_of_all_sources(ids):
    flat = {token for each in ids if each is not None for token in (each if isinstance(each, list) else [each])}
    assert end_ids(*map(Source, ids), None) == flat


@pytest.fixture
def tagged(byte_tokenizer):
    """The byte tokenizer with tags that are special tokens, as tool formats of some models have them."""
    byte_tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<action>", "</action>"]})
    return byte_tokenizer


def test_a_special_token_that_stops_nothing_stays_and_ends_nothing(tagged):
    renderer = ChatRenderer(tagged, "qwen2", {})
    tokens = tagged.encode("<action>go</action>", add_special_tokens=False)
    assert renderer.decode(tokens) == "<action>go</action>" and not renderer.ends(tokens)
    whole = [*tokens, tagged.eos_token_id]
    assert renderer.decode(whole) == "<action>go</action>" and renderer.ends(whole)
    assert renderer.decode([*whole, tagged.pad_token_id]) == "<action>go</action>"


@SHARED
@given(st.data())
def test_a_chat_turn_ends_with_the_ids_at_which_generation_stops(byte_tokenizer, data):
    further = data.draw(st.lists(st.integers(0, len(byte_tokenizer) - 1), max_size=3))
    renderer = ChatRenderer(byte_tokenizer, "qwen2", {}, (Source(further), None))
    ends = {byte_tokenizer.eos_token_id, *further}
    tokens = data.draw(st.lists(st.integers(0, len(byte_tokenizer) - 1), max_size=5))
    assert renderer.ends(tokens) == (bool(tokens) and tokens[-1] in ends)


def test_the_end_of_the_template_stops_generation_too(byte_tokenizer):
    end = byte_tokenizer.eos_token_id
    assert ChatTemplate(byte_tokenizer).end == end and ChatRenderer(byte_tokenizer, "qwen2", {}).stop_tokens == ()
    # As some conversions of models have it: the tokenizer names another end than the one of its template.
    byte_tokenizer.eos_token = "<|im_start|>"
    renderer = ChatRenderer(byte_tokenizer, "qwen2", {})
    assert renderer.stop_tokens == (end,) and renderer.ends([5, end])
    byte_tokenizer.chat_template = "{% for m in messages %}{{ m.content }};{% endfor %}"
    assert ChatTemplate(byte_tokenizer).end is None


def test_a_plain_turn_ends_with_its_end_token_or_a_stop_string():
    tokenizer = CharacterTokenizer()
    renderer = PlainRenderer(tokenizer)
    tokens = tokenizer.encode("go\n")
    assert (
        not renderer.ends(tokens)
        and renderer.ends(tokens, ("\n",))
        and renderer.ends([*tokens, tokenizer.eos_token_id])
    )
    assert not renderer.ends([], ("\n",)) and renderer.stop_tokens == ()


def test_an_endpoint_s_word_is_all_there_is():
    messages = Messages()
    whole, cut = messages.turn("said"), messages.turn("said", cut=True)
    assert messages.ends(whole) and not messages.ends(cut) and not messages.ends([])
    assert messages.decode(whole) == messages.decode(cut) == "said"
