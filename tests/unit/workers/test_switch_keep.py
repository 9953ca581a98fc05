"""HiPER's worker: tags, segments, masks, and its way to HiPER's own estimator."""

from __future__ import annotations

import asyncio
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fixtures.corridor import Corridor
from tests.fixtures.planner_transcript import planner_transcript
from verl_hier.graph import build_table
from verl_hier.host.specs import NoOptions
from verl_hier.testing.rollout import roll_out_scripted
from verl_hier_plugins.estimators.hiper import HiPEROptions, advantage
from verl_hier_plugins.samplers.independent import Independent
from verl_hier_plugins.workers.switch_keep import SwitchKeepOptions, hier_workers, read, transcribe

SAID = [
    "<switch>KEEP</switch><subgoal>go on</subgoal><action>right</action>",
    "<switch>KEEP</switch><subgoal>go on</subgoal><action>right</action>",
    "<switch>SWITCH</switch><subgoal>end</subgoal><action>left</action>",
    "<action>right</action>",
]


def roll(said, **options):
    turns = iter(said)
    return asyncio.run(
        roll_out_scripted(
            environment=lambda: Corridor(3),
            worker=hier_workers(),
            options=SwitchKeepOptions(**options),
            sampler=Independent(NoOptions()),
            answer=lambda prompt, sampling: next(turns),
            n=1,
        )
    )


@pytest.mark.parametrize("history", [0, 2])
def test_segments_begin_where_it_switches(history):
    graph, _ = roll(SAID, history=history)
    assert [n.segment for n in graph.nodes] == [0, 0, 1, 1]
    assert [n.extra["switch"] for n in graph.nodes] == [0, 0, 1, 0], "what the turn says, also the first one"
    assert [n.extra["format"] for n in graph.nodes] == [1, 1, 1, 0]
    assert [n.extra["subgoal"] for n in graph.nodes] == [0, 0, 1, -1]
    assert graph.episodes[0].status == "finished" and [n.valid for n in graph.nodes] == [True, True, False, True]


def test_masks_hold_the_tags_and_nothing_else():
    graph, policy = roll(SAID)
    for node in graph.nodes:
        for tag, spans in node.masks.items():
            for start, stop in spans:
                text = policy.tokenizer.decode(node.action[start:stop]).replace(" ", "")
                assert text.startswith(f"<{tag}>") and text.endswith(f"</{tag}>")
    last = graph.nodes[3]
    assert last.masks["switch"] == last.masks["subgoal"] == [] and last.masks["action"] == [[0, len(last.action) - 1]]


def test_a_turn_without_an_action_is_all_action():
    graph, _ = roll(["<switch>KEEP</switch> what now", *SAID[:2], SAID[3]])
    first = graph.nodes[0]
    assert first.masks["action"] == [[0, len(first.action)]] and first.masks["subgoal"] == []
    assert (first.valid, first.extra["format"], first.reward) == (False, 0, -0.1)


def test_a_wrong_format_costs_the_turn_where_the_worker_says_so():
    said = ["<switch>MAYBE</switch><subgoal>a</subgoal><action>right</action>", *SAID[:2]]
    plain, penalised = roll(said)[0], roll(said, format_penalty=0.25)[0]
    assert [n.extra["format"] for n in penalised.nodes] == [0, 1, 1]
    assert [a.reward - b.reward for a, b in zip(plain.nodes, penalised.nodes, strict=True)] == [0.25, 0, 0]
    assert plain.episodes[0].ret - penalised.episodes[0].ret == 0.25


def test_the_estimator_of_the_paper_reads_it():
    graph, _ = roll(SAID)
    table = build_table([graph])
    table.turns["value_low"] = table["reward"] * 0
    credit = advantage(table, HiPEROptions(norm_adv=False))
    assert len(credit.values) == sum(len(n.action) for n in graph.nodes)
    subgoal = [bool(v) for v, m in zip(credit.values, table["tokens.subgoal"], strict=True) if m]
    assert any(subgoal), "a subgoal that begins a segment has credit"


def test_the_prompt_of_a_window_names_the_subgoal():
    _, policy = roll(SAID, history=1)
    texts = [policy.tokenizer.decode(prompt) for prompt in policy.prompts]
    assert "goal : go on" in texts[1] and "goal : end" in texts[3]


def test_a_planners_episode_can_be_told():
    transcript = planner_transcript()
    told = transcribe(SwitchKeepOptions(), transcript)
    assert [read(text).switches for text in told] == [True, True, False]
    assert [read(text).content["subgoal"] for text in told] == ["one", "two", "two"]
    graph, _ = roll(told)
    assert graph.episodes[0].success


HOSTILE = st.lists(
    st.sampled_from(
        ["<switch>", "</switch>", "KEEP", "SWITCH", "<action>", "</action>", "<subgoal>", "right", "é", " "]
    )
).map("".join)


@settings(max_examples=200, deadline=None)
@given(HOSTILE)
def test_any_text_is_read(text):
    reading = read(text)
    assert all(text[start:stop].startswith(f"<{tag}>") for tag, (start, stop) in reading.ends.items())


def test_ten_megabytes_are_read_at_once():
    for text in ("<action>" * 1_300_000, "<" * 10_000_000, "<switch>" + "x" * 10_000_000):
        assert read(text).content == {}


def test_random_words_never_end_a_run():
    chance = random.Random(0)
    for _ in range(50):
        said = (
            "".join(chance.choice(["<action>", "</action>", "right", "<switch>", " "]) for _ in range(9))
            for _ in range(99)
        )
        graph, _ = roll(said)
        assert graph.episodes[0].status in ("finished", "truncated")
        assert all(n.valid or n.extra.get("failure") == "no_action_tag" or n.reward < 0 for n in graph.nodes)
