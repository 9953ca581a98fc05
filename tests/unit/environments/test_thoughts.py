"""Thoughts hold no action, whoever reads them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_hier.environments.action_parsing import parse_verb
from verl_hier.environments.thoughts import blank_thoughts, json_object_end, split_thoughts, without_thoughts
from verl_hier_plugins.environments.mcp.tools import Call, Problem, Tool, parse, read_turn
from verl_hier_plugins.environments.openenv.environment import OpenenvEnvironment
from verl_hier_plugins.environments.search.actions import Action, parse_action
from verl_hier_plugins.environments.shop.actions import parse_action as parse_click
from verl_hier_plugins.environments.textarena.environment import bracketed

LOOK = {"type": "object", "properties": {"text": {"type": "string"}}}
TOOLS = {"look": Tool("look", "", LOOK, False, False), "rest": Tool("rest", "", {}, False, False)}


def sent(text):
    """What the OpenEnv environment sends for a turn."""
    environment = OpenenvEnvironment.__new__(OpenenvEnvironment)
    environment._field = "message"
    return environment._action(text)


READERS = {
    "search": (parse_action, "<answer>{}</answer>", lambda word: Action("answer", word), None),
    "mcp answer": (lambda t: parse(t, TOOLS), "<answer>{}</answer>", lambda word: word, Problem),
    "mcp call": (
        lambda t: parse(t, TOOLS),
        '<tool_call>{{"name": "look", "arguments": {{"text": "{}"}}}}</tool_call>',
        lambda word: [Call("look", {"text": word})],
        Problem,
    ),
    "verbs": (
        lambda t: parse_verb(t, ("python", "answer")),
        "<answer>{}</answer>",
        lambda word: ("answer", word),
        None,
    ),
    "openenv": (sent, '{{"message": "{}"}}', lambda word: {"message": word}, None),
    "textarena": (lambda t: bracketed(t, "one"), "[{}]", lambda word: f"[{word}]", "[]"),
    "shop": (parse_click, "search[{}]", lambda word: ("search", word), None),
}
"""A reader, how it is told a word, what it reads then, and what it reads where nothing is said."""


@pytest.mark.parametrize("name", READERS)
@given(word=st.from_regex("[a-z]{2,9}", fullmatch=True), other=st.from_regex("[a-z]{2,9}", fullmatch=True))
def test_every_reader_reads_what_is_said_and_nothing_that_is_thought(name, word, other):
    read, form, meant, nothing = READERS[name]
    draft, final = form.format(other), form.format(word)
    for thought in (f"<think>{draft}</think>", f"<think>or {draft} then</think>\n", f"maybe {draft} no</think>\n"):
        assert read(thought + final) == meant(word), thought
        empty = read(thought)
        assert isinstance(empty, nothing) if isinstance(nothing, type) else empty == nothing, thought
    for cut in (f"<think>{draft}", f"<think>so {draft} or <think>", f"<think>a</think><think>{draft} so"):
        empty = read(cut)
        assert isinstance(empty, nothing) if isinstance(nothing, type) else empty == nothing, cut


PIECES = ("<think>", "</think>", "<tool_call>", '{"a": "</think>"}', '{"a": "', "x", " ", "}", '"')


@given(st.lists(st.sampled_from(PIECES)).map("".join))
def test_what_is_said_is_in_the_text_where_it_was(text):
    blank = blank_thoughts(text)
    assert len(blank) == len(text)
    assert all(shown in (" ", told) for shown, told in zip(blank, text, strict=True))
    assert blank.split() == without_thoughts(text).split()
    assert split_thoughts(text)[1] == without_thoughts(text).strip()


@pytest.mark.parametrize("literal", ["</tool_call>", "<tool_call>", "</think>", "<think>", "</answer>", "<answer>a"])
def test_tags_within_strings_are_characters(literal):
    call = f'{{"name": "look", "arguments": {{"text": "a {literal} b"}}}}'
    meant = [Call("look", {"text": f"a {literal} b"})]
    for text in (f"<tool_call>{call}</tool_call>", f"<think>x</think><tool_call>\n{call}\n</tool_call>", call):
        assert parse(text, TOOLS) == meant


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>{"name": "rest"}</tool_call><tool_call>{"name": "rest"}',
        '<tool_call>{"name": "rest"}<tool_call>{"name": "rest"}</tool_call>',
        '<tool_call>{"name": "rest"} <answer>a</answer>',
        '<tool_call>{"name": "rest",}</tool_call>',
        '<tool_call>{"name": "rest"} and so</tool_call>',
        '<tool_call>{"name": "look", "text": "hi"}</tool_call>',
        '{"name": "look", "score": 3}',
        '{"name": "look", "arguments": {"text": NaN}}',
        '{"name": "look", "arguments": {"text": 1e999}}',
        '{"name": "look", "arguments": {"text": ' + "[" * 300 + "]" * 300 + "}}",
        '{"name": "look", "arguments": {"text": ' + "[" * 9000,
        "look results say that Paris is the capital.",
        "look at what the results say of it",
        "look here.",
    ],
)
def test_what_is_no_call_is_none(text):
    assert isinstance(parse(text, TOOLS), Problem)


def test_parameters_are_arguments():
    """Llama 3 writes them so."""
    for call in ('{"name": "look", "parameters": {"text": "hi"}}', '{"parameters":{"text":"hi"},"name":"look"}'):
        assert parse(call, TOOLS) == parse(f"<tool_call>{call}</tool_call>", TOOLS) == [Call("look", {"text": "hi"})]


@pytest.mark.parametrize("kind", ["integer", "number", "boolean"])
@pytest.mark.parametrize("word", ["[" * 5000, "1" * 5000, "NaN", "Infinity", "1e999", "null", "{}"])
def test_plain_words_that_are_no_number_stay_words(kind, word):
    tool = Tool("square", "", {"properties": {"n": {"type": kind}}}, False, False)
    assert parse(f"square {word}", {"square": tool}, plain=True) == [Call("square", {"n": word})]


def test_the_text_before_a_call_is_all_of_it():
    text = (
        '<think>could <tool_call>{"name": "rest"}</tool_call></think> I look. <tool_call>{"name": "rest"}</tool_call>'
    )
    turn = read_turn(text, TOOLS)
    assert turn.found == [Call("rest", {})] and turn.before == text[: text.rindex("<tool_call>")]


def test_an_object_is_read_to_its_end():
    assert json_object_end(' {"a": "}"} x', 0) == 11
    assert json_object_end("[1]", 0) is None and json_object_end('{"a": ', 0) is None


@pytest.mark.parametrize(
    ("text", "moves", "told"),
    [
        ("I compare [0] and [8]. My move: [4]", "one", "[4]"),
        ("4", "one", "[4]"),
        ("[0] [4]", "one", "[4]"),
        ("[A C] is worse than [A B], [A C]", "several", "[A B], [A C]"),
        ("[Offer: 1] and [Deny]", "unknown", "[Offer: 1] and [Deny]"),
        ("<think>[0]", "one", "[]"),
        ("[4", "one", "[4"),
    ],
)
def test_the_last_brackets_are_the_move(text, moves, told):
    assert bracketed(text, moves) == told


@pytest.mark.parametrize("thoughts", [0, 1, 99, 100, 101, 500])
def test_only_broken_objects_count_against_the_reading_of_objects(thoughts):
    said = '{"a": "</think>"}'
    assert without_thoughts("<think>a</think>" * thoughts + said) == said
