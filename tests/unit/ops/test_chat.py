"""Rollouts as chat messages and back: what is exported is what was said, and survives the way there and back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fixtures import rollout_graphs
from verl_hier.errors import GraphError
from verl_hier.graph import chat_rows, conversation, write_graphs
from verl_hier.ops.exchange import export_chat, import_chat
from verl_hier.rollout.plain_renderer import PlainRenderer
from verl_hier.testing.rollout import CharacterTokenizer

GOLDEN = Path(__file__).parents[2] / "fixtures" / "golden" / "chat.jsonl"
MESSAGES = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]
KEPT = ("messages", "uid", "index", "data_source", "step", "agent", "role", "level", "return", "success", "rewards")


def read(path):
    return [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines()]


def imported(path, tokenizer=None):
    tokenizer = tokenizer or CharacterTokenizer()
    return import_chat(path, tokenizer, PlainRenderer(tokenizer))


def test_the_golden_file(tmp_path):
    export_chat(rollout_graphs.GOLDEN, tmp_path / "chat.jsonl")
    assert (tmp_path / "chat.jsonl").read_text(encoding="utf-8") == GOLDEN.read_text(encoding="utf-8")


def test_there_and_back(tmp_path):
    write_graphs(tmp_path / "again.jsonl", imported(GOLDEN))
    export_chat(tmp_path / "again.jsonl", tmp_path / "chat.jsonl")
    before, after = read(GOLDEN), read(tmp_path / "chat.jsonl")
    key = json.dumps
    assert sorted(key(line["messages"]) for line in after) == sorted(key(line["messages"]) for line in before)
    write_graphs(tmp_path / "third.jsonl", imported(tmp_path / "chat.jsonl"))
    export_chat(tmp_path / "third.jsonl", tmp_path / "chat3.jsonl")
    assert read(tmp_path / "chat3.jsonl") == after
    for name in KEPT[1:-2]:
        assert sorted((key(line["messages"]), key(line[name])) for line in after if line["success"] is not None) == (
            sorted((key(line["messages"]), key(line[name])) for line in before if line["success"] is not None)
        )


told = st.lists(st.tuples(st.sampled_from(["system", "user", "tool"]), st.text(max_size=6)), max_size=2)
turns = st.lists(st.tuples(told, st.text(max_size=6)), max_size=3)


@settings(max_examples=40, deadline=None)
@given(first=st.text(min_size=1, max_size=6), answer=st.text(max_size=6), more=turns)
def test_any_conversation_comes_back(tmp_path_factory, first, answer, more):
    messages = [{"role": "user", "content": first}, {"role": "assistant", "content": answer}]
    for told, said in more:
        messages += [{"role": role, "content": content} for role, content in told]
        messages.append({"role": "assistant", "content": said})
    path = tmp_path_factory.mktemp("chat") / "chat.jsonl"
    path.write_text(json.dumps({"messages": messages}) + "\n", encoding="utf-8")
    (graph,) = imported(path)
    assert len(graph.nodes) == 1 + len(more) and len(graph.episodes) == 1
    (line,) = chat_rows(graph)
    assert line["messages"] == messages


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_imported_tokens_are_those_of_the_rollout(tmp_path, suffix):
    import asyncio

    from tests.fixtures.corridor import Corridor
    from verl_hier.host.specs import NoOptions
    from verl_hier.testing.rollout import roll_out_scripted
    from verl_hier_plugins.samplers.independent import Independent
    from verl_hier_plugins.workers.react import React, ReactOptions

    graph, policy = asyncio.run(
        roll_out_scripted(
            environment=Corridor,
            worker=lambda: React(ReactOptions(system="go")),
            sampler=Independent(NoOptions()),
            answer=rollout_graphs.answer,
            tokenizer=CharacterTokenizer(),
            n=2,
        )
    )
    write_graphs(tmp_path / "graphs.jsonl", [graph])
    assert export_chat(tmp_path / "graphs.jsonl", tmp_path / f"chat{suffix}") == 2
    (again,) = imported(tmp_path / f"chat{suffix}", policy.tokenizer)
    again.check()
    for name in ("observation", "action", "parent", "context", "turn", "episode", "role", "level", "text", "messages"):
        assert [getattr(node, name) for node in again.nodes] == [getattr(node, name) for node in graph.nodes], name
    assert [node.reward for node in again.nodes] == pytest.approx([node.reward for node in graph.nodes])
    assert [e.ret for e in again.episodes] == pytest.approx([e.ret for e in graph.episodes])
    assert [e.success for e in again.episodes] == [e.success for e in graph.episodes]
    assert again.task["uid"] == graph.task["uid"] and again.step == graph.step


def test_verls_own_data_set_reads_the_file(tmp_path, byte_model):
    from transformers import AutoTokenizer
    from verl.utils.dataset.multiturn_sft_dataset import MultiTurnSFTDataset

    tokenizer = AutoTokenizer.from_pretrained(byte_model)
    graphs = rollout_graphs.golden()
    write_graphs(tmp_path / "graphs.jsonl", graphs)
    count = export_chat(tmp_path / "graphs.jsonl", tmp_path / "chat.parquet")
    rows = MultiTurnSFTDataset(
        str(tmp_path / "chat.parquet"), tokenizer, {"pad_mode": "no_padding", "max_length": 4096}
    )
    lines = [line for graph in graphs for line in chat_rows(graph)]
    assert len(rows) == count == len(lines)
    for row, line in zip((rows[i] for i in range(count)), lines, strict=True):
        trained = tokenizer.decode(row["input_ids"][row["loss_mask"].bool()])
        said = [message["content"] for message in line["messages"] if message["role"] == "assistant"]
        assert trained == "".join(f"{text}<|im_end|>\n" for text in said)


def test_chat_templates_give_what_a_rollout_gives(tmp_path, byte_model):
    from verl_hier.chat.tokenizer import load_renderer, load_tokenizer

    tokenizer = load_tokenizer(byte_model)
    for graph in import_chat(GOLDEN, tokenizer, load_renderer(byte_model, tokenizer, "chat")):
        graph.check()
        for episode in graph.episodes:
            last = episode.leaf
            tokens = graph.prompt(last) + graph.nodes[last].action
            text = tokenizer.apply_chat_template(conversation(graph, last), tokenize=False)
            assert tokenizer.decode(tokens) + "\n" == text


def test_what_version_1_kept_cannot_be_told(tmp_path):
    with pytest.raises(GraphError, match=r"keeps no messages.*roll it out again"):
        export_chat(rollout_graphs.OLDER[1], tmp_path / "chat.jsonl")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "text, words",
    [
        ("{", "line 2 is not JSON"),
        ("[1]", "line 2 is not a JSON object"),
        ({"text": "hi"}, "line 2 lacks `messages`"),
        ({"messages": "hi"}, "`messages` has to be a list"),
        ({"messages": []}, "must not begin, with the assistant"),
        ({"messages": MESSAGES[:1]}, "have to end"),
        ({"messages": MESSAGES[1:]}, "must not begin"),
        ({"messages": [{"role": "user", "content": None}, MESSAGES[1]]}, "message 1 needs a text"),
        ({"messages": [MESSAGES[0], MESSAGES[1] | {"tool_calls": [1]}]}, "message 2 has `tool_calls`"),
        ({"messages": MESSAGES, "step": "x"}, "`step` has to be an integer"),
        ({"messages": MESSAGES, "step": True}, "`step` has to be an integer"),
        ({"messages": MESSAGES, "rewards": ["x"]}, "`rewards` has to be a list of numbers"),
        ({"messages": MESSAGES, "return": "x"}, "`return` has to be a number"),
    ],
)
def test_a_line_that_is_wrong_is_named(tmp_path, text, words):
    path = tmp_path / "chat.jsonl"
    path.write_text("\n" + (text if isinstance(text, str) else json.dumps(text)) + "\n")
    with pytest.raises(GraphError) as caught:
        imported(path)
    sentence = str(caught.value)
    assert words in sentence and str(path) in sentence and sentence.endswith(".") and "\n" not in sentence


def test_nothing_to_read_and_nowhere_to_write(tmp_path):
    for name, content, words in (
        ("none.jsonl", None, "no file"),
        ("empty.jsonl", b"", "empty"),
        ("x.parquet", b"x", "read"),
    ):
        if content is not None:
            (tmp_path / name).write_bytes(content)
        with pytest.raises(GraphError, match=words):
            imported(tmp_path / name)
    with pytest.raises(GraphError, match=r"use \.jsonl or \.parquet"):
        export_chat(rollout_graphs.GOLDEN, tmp_path / "chat.csv")
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(GraphError, match="cannot write"):
        export_chat(rollout_graphs.GOLDEN, tmp_path / "file" / "chat.jsonl")


@pytest.mark.parametrize(
    "more, rewards",
    [
        ({}, [0.0, 0.0]),
        ({"return": 2.0}, [0.0, 2.0]),
        ({"return": 2.0, "rewards": [0.5, 0.25]}, [0.5, 1.5]),
        ({"rewards": [0.5, 0.25]}, [0.5, 0.25]),
        ({"return": 2.0, "rewards": [0.5]}, [0.0, 2.0]),
    ],
)
def test_what_the_turns_have_not_earned_falls_on_the_last(tmp_path, more, rewards):
    path = tmp_path / "chat.jsonl"
    path.write_text(json.dumps({"messages": MESSAGES * 2, "uid": "t", **more}) + "\n")
    (graph,) = imported(path)
    assert [node.reward for node in graph.nodes] == rewards
    assert graph.episodes[0].ret == sum(rewards) == next(chat_rows(graph))["return"]
    assert [node.done for node in graph.nodes] == [False, True]
