"""Contexts that go on inside the agent's own message, in both renderers, and where in an action a text ends."""

from __future__ import annotations

import random
from bisect import bisect_left

import pytest
from transformers import AutoTokenizer

from tests.fixtures.byte_model import write_byte_model
from verl_hier.chat.renderer import ChatRenderer
from verl_hier.graph.nodes import Node
from verl_hier.rollout import Context
from verl_hier.rollout.plain_renderer import PlainRenderer
from verl_hier.testing.rollout import CharacterTokenizer, WordTokenizer


@pytest.fixture(scope="module")
def byte_tokenizer(tmp_path_factory):
    return AutoTokenizer.from_pretrained(write_byte_model(tmp_path_factory.mktemp("byte_model")))


def node() -> Node:
    return Node(0, -1, -1, 0, "a", "a", 0, 0, 0, -1, [], [], [])


def test_plain_contexts_go_on_without_a_cue():
    tokenizer = WordTokenizer()
    context = Context(PlainRenderer(tokenizer), "a", 0).observe("ask")
    prompt, _ = context.prompt()
    context.append_turn(prompt, tokenizer.encode("<go> up </go>"), node())
    context.extend("<saw> sky </saw>").extend("")
    longer, kept = context.prompt()
    assert tokenizer.decode(longer) == "ask <act> <go> up </go> <saw> sky </saw>"
    assert kept == len(prompt) + 3
    context.append_turn(longer, tokenizer.encode("<go> down </go>"), node())
    context.extend("")
    assert context.prompt()[0] == longer + tokenizer.encode("<go> down </go>")


def test_chat_contexts_go_on_in_one_message(byte_tokenizer):
    """What the template would make of the same messages with the whole answer in one, and a question after it."""
    renderer = ChatRenderer(byte_tokenizer, "qwen2", {})
    context = Context(renderer, "a", 0).observe("be brief", role="system").observe("ask")
    prompt, _ = context.prompt()
    said = byte_tokenizer.encode("<go>up</go>", add_special_tokens=False)
    context.append_turn(prompt, said, node())
    context.extend("<saw>sky</saw>")
    longer, kept = context.prompt()
    assert kept == len(prompt + said)
    assert longer == prompt + byte_tokenizer.encode("<go>up</go><saw>sky</saw>", add_special_tokens=False)
    end = byte_tokenizer.eos_token_id
    context.append_turn(longer, [*byte_tokenizer.encode("done", add_special_tokens=False), end], node())
    context.observe("and now")
    whole, kept = context.prompt()
    assert kept == len(longer) + 5
    messages = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "ask"},
        {"role": "assistant", "content": "<go>up</go><saw>sky</saw>done"},
        {"role": "user", "content": "and now"},
    ]
    assert byte_tokenizer.decode(whole) == byte_tokenizer.apply_chat_template(
        messages, tokenize=False, add_generation_prompt=True
    )


def test_nothing_can_be_extended_before_it_is_said():
    with pytest.raises(ValueError, match="not taken a turn yet"):
        Context(PlainRenderer(WordTokenizer()), "a", 0).extend("x")


def test_tokens_until(byte_tokenizer):
    context = Context(ChatRenderer(byte_tokenizer, "qwen2", {}), "a", 0)
    text = "né <b>🙂</b>"
    action = byte_tokenizer.encode(text, add_special_tokens=False)
    ends = [0, text.index("<b>") + 3, len(text)]
    assert context.tokens_until(action, ends) == [len(text[:end].encode()) for end in ends]


@pytest.mark.parametrize("tokenizer", [CharacterTokenizer, WordTokenizer])
def test_the_tokens_of_a_place_are_found_as_decoding_all_of_them_finds_them(tokenizer):
    chance = random.Random(0)
    for _ in range(300):
        pieces = ["<a>", "</a>", " ", "  \n", "xyz", "q", " " * chance.randrange(60)]
        made = tokenizer()
        tokens = made.encode("".join(chance.choice(pieces) for _ in range(chance.randrange(1, 120))))
        renderer = PlainRenderer(made)
        text = renderer.decode(tokens)
        ends = [place for place in range(1, len(text) + 1) if text[place - 1] == ">"]
        ends = sorted(chance.sample(ends, min(5, len(ends))))

        def decoded(count, renderer=renderer, tokens=tokens):
            return len(renderer.decode(tokens[:count]))

        slowly = [bisect_left(range(len(tokens)), end, key=decoded) for end in ends]
        assert Context(renderer, "agent", 0).tokens_until(tokens, ends) == slowly
