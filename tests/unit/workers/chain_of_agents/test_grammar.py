"""The grammar: legal walks pass, each kind of illegal one has its name, and no text breaks or slows the reader."""

from __future__ import annotations

import random
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verl_hier_plugins.workers.chain_of_agents.grammar import (
    ANSWER,
    FOLLOWERS,
    START,
    THINK,
    TOOL,
    VIOLATIONS,
    Language,
    Walk,
    score_of,
)

TOOLS = ("web_search", "python")


def language(**options) -> Language:
    return Language(TOOLS, **options)


def wrap(tag: str, content: str = "x") -> str:
    return f"<{tag}>{content}</{tag}>"


def problem(text: str, spoken: Language | None = None) -> str | None:
    """The first violation of a whole text, turns aside."""
    spoken = spoken or language()
    reading, walk = spoken.read(text), Walk(spoken)
    broken = dict(reversed([(place, name) for name, place in reading.errors]))
    for place, segment in enumerate(reading.segments):
        found = walk.step(segment)
        if broken.get(place) or found:
            return broken.get(place) or found
    return broken.get(len(reading.segments))


def legal_walk(rng: random.Random, steps: int = 12) -> list[tuple[str, str]]:
    """(tag, content) of a random walk over the table of followers, thoughts included, written without the reader."""
    parts: list[tuple[str, str]] = []
    state, must = START, None
    while state != ANSWER and len(parts) < 2 * steps:
        state = must or rng.choice(FOLLOWERS[state])
        must, content = None, f"word {len(parts)}"
        if state == "double_check":
            score = rng.randint(1, 4)
            content, must = f"The score is {score}", ANSWER if score >= 3 else rng.choice(("plan", TOOL))
        if state == "reflection" and rng.random() < 0.5:
            content, must = "coverage: Poor", "plan"
        parts += [(THINK, "hm"), (rng.choice(TOOLS) if state == TOOL else state, content)]
    return parts


def told(parts: list[tuple[str, str]]) -> str:
    return "\n".join(wrap(tag, content) for tag, content in parts)


@given(st.randoms(use_true_random=False))
@settings(max_examples=200, deadline=None)
def test_legal_walks_pass(rng):
    parts = legal_walk(rng)
    reading = language().read(told(parts))
    assert [(s.tag, s.content) for s in reading.segments] == parts
    assert not reading.errors and problem(told(parts)) is None


@given(st.randoms(use_true_random=False))
@settings(max_examples=200, deadline=None)
def test_a_legal_walk_without_a_thought_or_with_a_stranger_is_refused(rng):
    parts = legal_walk(rng)
    thought = 2 * rng.randrange(len(parts) // 2)
    assert problem(told(parts[:thought] + parts[thought + 1 :])) == "no_think"
    assert problem(told(parts[:thought]) + wrap("oracle") + told(parts[thought:])) == "unknown_agent"
    assert problem(told(parts[:thought]) + "and so" + told(parts[thought:])) == "stray_text"
    assert problem(told(parts[:thought]) + wrap("observation") + told(parts[thought:])) == "forged_observation"


def chain(*tags: str) -> str:
    return "".join(wrap(THINK) + (tag if tag.startswith("<") else wrap(tag)) for tag in tags)


@pytest.mark.parametrize(
    "text, name",
    [
        ("", "no_agent"),
        ("  \n", "no_agent"),
        ("just words", "stray_text"),
        ("<think>never ends", "unclosed"),
        ("</think>", "unopened"),
        ("<think>a</plan></think>", "mismatched"),
        ("<think><plan>a</plan></think>", "nested"),
        ("<think><observation>a</observation></think>", "forged_observation"),
        ("<observation>a</observation>", "forged_observation"),
        ("<magic>a</magic>", "unknown_agent"),
        (f"<think>{'a' * 101}</think>", "too_long"),
        (wrap("plan"), "no_think"),
        (chain("plan", "plan"), "transition"),
        (chain("answer"), "transition"),
        (chain("plan", "web_search", "answer"), "transition"),
        (wrap(THINK) + wrap(THINK), "transition"),
        (chain("plan", "python", "<reflection>coverage: poor</reflection>", "python"), "no_replan"),
        (chain("plan", "suggested_answer", "double_check"), "no_score"),
        (chain("plan", "suggested_answer", "<double_check>score: 2</double_check>", "answer"), "not_accepted"),
        (chain("plan", "suggested_answer", "<double_check>score: 3</double_check>", "plan"), "transition"),
        (chain("plan", "suggested_answer", "<double_check>score: 3</double_check>", "answer"), None),
        (chain("plan", "python", "<reflection>coverage: poor</reflection>", "plan"), None),
        ("<think>a < b and <b>bold</b></think>", None),
    ],
)
def test_each_violation_has_its_name(text, name):
    assert problem(text, language(longest_content=100)) == name
    assert name is None or name in VIOLATIONS


def test_the_sentence_of_the_paper_is_read():
    text = "<think>a</think><web_search>b</web_search><observation>c</observation><answer>d</answer>"
    assert [s.tag for s in language().read(text).segments] == ["think", "web_search", "answer"]
    assert language().read(text).errors == (("forged_observation", 2), ("stray_text", 2), ("forged_observation", 2))


def test_a_tag_may_be_cut_between_two_turns():
    spoken = language()
    first = spoken.read("<think>a</think><")
    assert (first.rest, first.errors) == ("<", ())
    second = spoken.read(first.rest + "plan>b</plan>\n")
    assert [s.tag for s in second.segments] == ["plan"] and not second.errors


def test_the_grammar_can_be_another():
    free = language(think_first=False, grammar={"start": ("tool",), "tool": ("answer", "critic"), "critic": ("tool",)})
    assert problem(wrap("python") + wrap("critic") + wrap("python") + wrap("answer"), free) is None
    assert problem(wrap("think") + wrap("think") + wrap("plan"), free) == "transition"
    assert "critic" in free.agents and "</critic>" in free.stops(every_agent=True)
    assert set(free.stops(every_agent=False)) == {
        "</web_search>", "</python>", "</answer>", "<observation>"
    }  # fmt: skip


@pytest.mark.parametrize("tools", [("plan",), ("think",), ("observation",), ("a b",), ("",), ("x>",), ("tool",)])
def test_tags_that_cannot_be_are_refused(tools):
    with pytest.raises(ValueError):
        Language(tools)


def test_scores():
    assert [score_of(text) for text in ("score: 3", "The score this time is:4/4", "2", "none", "")] == [
        3,
        4,
        2,
        None,
        None,
    ]


PIECES = (
    "<think>", "</think>", "<plan>", "</plan>", "<web_search>", "</web_search>", "<observation>", "</observation>",
    "<answer>", "</answer>", "<double_check>", "</double_check>", "<", ">", "</", "<<think>>", "<THINK>", "< think>",
    "word", " ", "\n", "{0}", "{content}", "\x00", "é", "🙂", "<a" * 3, "</x>", "poor", "score 9", "&lt;think&gt;",
)  # fmt: skip


def test_ten_thousand_texts_are_read_or_refused_by_name():
    spoken, rng = language(), random.Random(0)
    for _ in range(10_000):
        text = "".join(rng.choices(PIECES, k=rng.randrange(12)))
        reading = spoken.read(text)
        assert all(name in VIOLATIONS for name, _ in reading.errors)
        assert reading.segments or reading.errors or reading.rest.strip().startswith("<")
        stops = [segment.stop for segment in reading.segments]
        assert stops == sorted(stops)
        for segment in reading.segments:
            assert text[: segment.stop].endswith(f"</{segment.tag}>")
            assert f"</{segment.tag}>" not in segment.content
        walk = Walk(spoken)
        assert {walk.step(segment) for segment in reading.segments} <= {None, *VIOLATIONS}


@pytest.mark.parametrize("piece", ["a", "<think>", "<", "<think></think>"])
def test_ten_megabytes_take_a_moment(piece):
    text = piece * (10_000_000 // len(piece))
    started = time.process_time()
    language().read(text)
    assert time.process_time() - started < 20
