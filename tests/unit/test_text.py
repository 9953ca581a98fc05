"""Text is any text: halves of characters are replaced where they enter, and nothing else is changed anywhere."""

import asyncio
import io
import json
import random
import re
from contextlib import redirect_stdout
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verl_hier.cli.output import heading, line, table
from verl_hier.environments.base import StepResult
from verl_hier.environments.pool import EnvironmentFailure, EnvironmentPool
from verl_hier.environments.wire import HEADER, from_step, pack, to_step, unpack
from verl_hier.errors import RolloutError
from verl_hier.graph import read_graphs, write_graphs
from verl_hier.rollout import Worker
from verl_hier.rollout.context import Context
from verl_hier.rollout.plain_renderer import PlainRenderer
from verl_hier.testing.byte_pairs import BytePairTokenizer
from verl_hier.testing.line import Line
from verl_hier.testing.rollout import roll_out_scripted
from verl_hier.text import DEEPEST, read_json, repaired, without_halves

ANY = st.text(st.characters(codec=None, exclude_categories=()), max_size=60)
"""Of all code points, halves included."""
WHOLE = st.text(st.characters(codec="utf-8"), max_size=60)
HALF = re.compile("[\ud800-\udfff]")
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | ANY,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(ANY, inner, max_size=4),
    max_leaves=20,
)


def replaced(text):
    """The definition."""
    return HALF.sub("?", text)


@given(ANY)
def test_each_half_becomes_one_sign(text):
    assert without_halves(text) == replaced(text)


@given(WHOLE)
def test_a_text_without_halves_is_the_same_object(text):
    assert without_halves(text) is text
    assert repaired(value := {text: [text, (text, 1)]}) is value


@given(VALUES)
def test_json_of_strangers_has_no_halves(value):
    found = read_json(json.dumps(value))
    assert not HALF.search(json.dumps(found, ensure_ascii=False))
    assert repaired(value) == found or HALF.search(json.dumps(value, ensure_ascii=False))


@pytest.mark.parametrize(
    "text",
    [
        "NaN",
        "[-Infinity]",
        "1e999",
        '{"a": [1, -1e400]}',
        "[" * 102 + "]" * 102,
        "[" * 5000,
        "9" * 5000,
        "{",
        b'"\xff"',
    ],
)
def test_what_is_no_json_raises_one_kind_of_error(text):
    with pytest.raises(ValueError):
        read_json(text)


def test_as_many_levels_as_are_promised():
    assert read_json("[" * DEEPEST + "]" * DEEPEST)


# ---- where texts enter ---------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(ANY, st.lists(ANY, max_size=3), st.dictionaries(ANY, VALUES, max_size=3))
def test_steps_have_no_halves_at_either_end(text, admissible, info):
    step = StepResult(text, admissible=tuple(admissible), anchor=text, info=info, rewards={text: 1.0})
    said = from_step(step)
    assert not HALF.search(json.dumps(said, ensure_ascii=False))
    # A process may say what it likes; JSON escapes it.
    raw = {**said, "text": text, "admissible": admissible, "anchor": text, "info": info, "rewards": {text: 1.0}}
    for found in (to_step(raw), to_step(unpack(pack(raw)[HEADER.size :]))):
        assert found.text == replaced(text) and found.anchor == replaced(text)
        assert found.admissible == tuple(map(replaced, admissible))
        assert not HALF.search(json.dumps(found.info, ensure_ascii=False)) and list(found.rewards) == [replaced(text)]


@given(WHOLE, st.lists(WHOLE, max_size=3))
def test_steps_without_halves_are_as_they_were(text, admissible):
    step = StepResult(text, admissible=tuple(admissible), anchor=text, info={text: [text]})
    assert to_step(from_step(step)) == step
    assert json.loads(pack(from_step(step))[HEADER.size :]) == from_step(step)


class Heard:
    """A renderer that keeps what it is given, and reads it as a model's tokenizer does."""

    def __init__(self):
        self.heard, self._tokenizer = [], BytePairTokenizer()

    def render(self, tokens, history, pending, tools=()):
        self.heard.append((history, pending, tools))
        said = json.dumps([history, pending, list(tools)], ensure_ascii=False)
        return [*tokens, *self._tokenizer.encode(said)]

    def decode(self, tokens):
        return self._tokenizer.decode(tokens)

    def ends(self, tokens, stop=()):
        return True

    stop_tokens = ()


@settings(deadline=None)
@given(ANY)
def test_whatever_enters_a_context_is_whole(text):
    renderer = Heard()
    context = Context(renderer, "agent", 0, agent=f"a {text}")
    context.tools = ({"function": {"name": text, "description": text, "parameters": {text: [text]}}},)
    context.observe(text, role="system").observe(text, tool_call_id=text, tool_calls=[{"function": {"name": text}}])
    prompt, _ = context.prompt()
    context.append_turn(prompt, [1], object(), "said")
    context.read_as(text, tool_calls=[{"arguments": text}])
    context.extend(text)
    context.prompt()
    context.observe(text).prompt()
    assert context.agent == f"a {replaced(text)}"
    for history, pending, tools in renderer.heard:
        assert not HALF.search(json.dumps([history, pending, tools], ensure_ascii=False))
    assert [message["content"] for message in renderer.heard[0][1]] == [replaced(text)] * 2


@given(WHOLE)
def test_every_other_character_reaches_the_tokenizer(text):
    tokenizer = BytePairTokenizer()
    context = Context(PlainRenderer(tokenizer), "agent", 0)
    prompt, _ = context.observe(text).prompt()
    assert prompt == [*tokenizer.encode(text), tokenizer.get_vocab()["<act>"]]
    assert tokenizer.decode(tokenizer.encode(text)) == text


class Broken(Worker):
    """Talks with the world, and its tokenizer fails."""

    async def run(self, episode):
        step = await episode.reset()
        await episode.generate(episode.context("agent").observe(step.text))


class Raising(BytePairTokenizer):
    def encode(self, text, add_special_tokens=True):
        raise TypeError("TextEncodeInput must be Union[...]")


def test_a_fault_in_text_is_not_the_workers():
    with pytest.raises(RolloutError, match=r"tokenizer or chat template.*TextEncodeInput.*model\.path") as caught:
        asyncio.run(roll_out_scripted(worker=Broken, answer=lambda *_: "right", tokenizer=Raising()))
    assert "fault of the worker" not in str(caught.value)


class Half(Line):
    """Says halves of characters everywhere."""

    def step(self, action):
        said = "\ud83d half \ude00"
        return replace(
            super().step(action), text=said, admissible=(said,), anchor=said, info={said: [said], "won": False}
        )


class Failing(Line):
    def step(self, action):
        raise RuntimeError("half \ud83d")


def half(options):
    return Half()


def failing(options):
    return Failing()


def test_the_pool_says_no_half():
    async def play():
        pool = EnvironmentPool(half)
        handle, _ = await pool.open({"instruction": "do it"}, 0)
        step = await handle.step("right \udc00")
        other = await handle.fork()
        again = await other.step("right")
        await pool.close()
        return step, again

    for step in asyncio.run(play()):
        assert step.text == "? half ?" and step.admissible == ("? half ?",) and step.info["? half ?"] == ["? half ?"]


def test_errors_of_a_world_are_whole():
    async def play():
        pool = EnvironmentPool(failing)
        handle, _ = await pool.open({"instruction": "do it"}, 0)
        try:
            await handle.step("right")
        finally:
            await pool.close()

    with pytest.raises(EnvironmentFailure, match=r"half \?"):
        asyncio.run(play())


class Noisy(Worker):
    """Names agents, marks turns and acts with text of all kinds."""

    def __init__(self, text):
        self._text = text

    async def run(self, episode):
        step = await episode.reset()
        for number in range(3):
            context = episode.context("agent", agent=f"{self._text}{number}", system=self._text)
            turn = await episode.generate(context.observe(step.text))
            turn.set_speaker("agent", agent=self._text)
            turn.mark(note=self._text)
            await episode.likelihoods(context, [self._text])
            step = await episode.act(self._text)


@settings(deadline=None, max_examples=30)
@given(ANY)
def test_stored_graphs_come_back_whatever_was_said(tmp_path_factory, text):
    def world():
        return Half()

    graph, _ = asyncio.run(
        roll_out_scripted(
            worker=lambda: Noisy(text),
            answer=lambda *_: "right",
            environment=world,
            tokenizer=BytePairTokenizer(),
            n=1,
        )
    )
    folder = tmp_path_factory.mktemp("graphs")
    for name in ("step.jsonl", "step.parquet"):
        write_graphs(folder / name, [graph])
        (again,) = read_graphs(folder / name)
        assert again.nodes == graph.nodes
    assert graph.nodes[0].extra["note"] == replaced(text)


# ---- where texts leave ---------------------------------------------------------------------------------------------


@given(ANY)
def test_a_terminal_is_given_no_character_that_it_obeys(text):
    out = io.StringIO()
    with redirect_stdout(out):
        line(text)
        heading(text)
        table([[text, "x"]], head=("a", "b"))
    said = re.sub(r"\x1b\[[01]?m", "", out.getvalue())
    assert all(sign.isprintable() or sign == "\n" for sign in said)


def test_repair_is_cheap():
    """Texts of an ordinary step are looked at once."""
    chance = random.Random(0)
    value = {str(number): [chance.random(), "é" * 100, {"a": "b" * 1000}] for number in range(1000)}
    assert repaired(value) is value
