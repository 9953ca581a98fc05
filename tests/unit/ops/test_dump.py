"""Verl's rollout dump: ours is the file that verl's own trainer writes, and either can be credited again."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from verl.trainer.ppo.v1.trainer_base import PPOTrainer

from tests.fixtures import rollout_graphs
from verl_hier.errors import GraphError
from verl_hier.graph import dump_rows, graph_rows, write_graphs
from verl_hier.ops import offline
from verl_hier.ops.exchange import export_dump, import_dump
from verl_hier.testing.rollout import CharacterTokenizer

GOLDEN = Path(__file__).parents[2] / "fixtures" / "golden" / "dump.jsonl"
LINE = {"input": "ask", "output": "say", "gts": None, "score": 1.0, "step": 3}


class Numbers:
    """Token ids as words: what the golden graphs' tokens meant is not stored with them."""

    def decode(self, tokens, skip_special_tokens):
        assert skip_special_tokens
        return " ".join(map(str, tokens))


def dumped_by_verl(folder, step, lines, **more):
    """Let verl's trainer write lines, as it does at the end of a step; `more` is what a reward function adds."""
    writes = PPOTrainer._write_generations
    with ThreadPoolExecutor(1) as executor:
        trainer = SimpleNamespace(
            global_steps=step, _dump_executor=executor, _dump_futures=[], _write_generations=writes
        )
        columns = {key: [line[key] for line in lines] for key in ("input", "output", "gts", "score")}
        PPOTrainer._dump_generations(
            trainer, columns["input"], columns["output"], columns["gts"], columns["score"], more, str(folder)
        )
    return folder / f"{step}.jsonl"


def read(path):
    return [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines()]


def test_it_is_byte_by_byte_what_verl_writes(tmp_path):
    graph = rollout_graphs.hierarchical(step=4)
    graph.task["ground_truth"] = "é"
    write_graphs(tmp_path / "graphs.jsonl", [graph])
    count = export_dump(tmp_path / "graphs.jsonl", tmp_path / "ours.jsonl", Numbers())
    lines = read(tmp_path / "ours.jsonl")
    theirs = dumped_by_verl(tmp_path / "verl", 4, lines, uid=[line["uid"] for line in lines])
    assert theirs.read_bytes() == (tmp_path / "ours.jsonl").read_bytes()
    assert count == len(lines) == len(graph_rows(graph, lambda node: True)) > len(graph.episodes)


def test_the_golden_file(tmp_path):
    export_dump(rollout_graphs.GOLDEN, tmp_path / "dump.jsonl", Numbers())
    assert (tmp_path / "dump.jsonl").read_text(encoding="utf-8") == GOLDEN.read_text(encoding="utf-8")
    executors = graph_rows(rollout_graphs.golden()[1], lambda node: node.level == 1)
    told = [line for line in read(GOLDEN) if line["step"] == 2]
    assert 0 < len(executors) == len(told) < len(graph_rows(rollout_graphs.golden()[1], lambda node: True))


@settings(max_examples=40, deadline=None)
@given(rollout_graphs.trees())
def test_rows_come_back_as_episodes(tmp_path_factory, graph):
    lines = list(dump_rows(graph, lambda tokens: " ".join(map(str, tokens))))
    if not lines:
        return
    path = tmp_path_factory.mktemp("dump") / "dump.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    (again,) = import_dump(path, CharacterTokenizer())
    episodes = dict.fromkeys(line["uid"].rsplit("_", 2)[1] for line in lines)
    assert len(again.episodes) == len(episodes) and len(again.nodes) == len(lines)
    assert [e.ret for e in again.episodes] == [graph.episodes[int(number)].ret for number in episodes]
    assert [(n.messages[0].content, n.text) for n in again.nodes] == [(x["input"], x["output"]) for x in lines]


def test_there_and_back(tmp_path):
    tokenizer = CharacterTokenizer()
    write_graphs(tmp_path / "graphs.jsonl", import_dump(GOLDEN, tokenizer))

    class Plain:
        def decode(self, tokens, skip_special_tokens):
            return tokenizer.decode([token for token in tokens if token > 2])

    export_dump(tmp_path / "graphs.jsonl", tmp_path / "again.jsonl", Plain())
    before, after = read(GOLDEN), read(tmp_path / "again.jsonl")
    for name in ("input", "output", "gts", "score", "step"):
        assert [line[name] for line in after] == [line[name] for line in before]


def test_a_stock_dump_is_credited_again(tmp_path):
    """verl's trainers without a `uid`: a task is an input of a step."""
    lines = [LINE | {"input": task, "score": score} for task, score in (("a", 1.0), ("b", 0.0), ("a", 0.0), ("b", 0.0))]
    dumped_by_verl(tmp_path / "dumps", 10, lines, acc=[1.0, 0.0, 0.0, 0.0], reward=[9.0] * 4)
    dumped_by_verl(tmp_path / "dumps", 9, lines)
    graphs = import_dump(tmp_path / "dumps", CharacterTokenizer())
    assert [(graph.step, len(graph.episodes)) for graph in graphs] == [(9, 2), (9, 2), (10, 2), (10, 2)]
    assert len({(graph.step, graph.task["uid"]) for graph in graphs}) == 4
    assert graphs[2].nodes[0].extra == {"acc": 1.0} and not graphs[0].nodes[0].extra
    write_graphs(tmp_path / "graphs.parquet", graphs)
    offline.credit("grpo", tmp_path / "graphs.parquet", tmp_path / "credit.jsonl")
    credit = {(x["step"], x["uid"], x["episode"]): x["credit"] for x in read(tmp_path / "credit.jsonl")}
    for graph in graphs:
        one, two = (credit[graph.step, graph.task["uid"], number] for number in (0, 1))
        if graph.nodes[0].text and [e.ret for e in graph.episodes] == [1.0, 0.0]:
            assert one > 0 > two and one == pytest.approx(-two)
        else:
            assert one == two == 0.0


def test_the_rows_of_an_episode_are_its_turns(tmp_path):
    rows = [("t_1_0_1", "second"), ("t_1_0_0", "first"), ("t_1_1_0", "other"), ("odd", "alone")]
    path = tmp_path / "3.jsonl"
    path.write_text("".join(json.dumps(LINE | {"uid": uid, "output": text}) + "\n" for uid, text in rows))
    first, second = import_dump(path, CharacterTokenizer())
    assert first.task["uid"] == "t_1" and [node.text for node in first.nodes] == ["first", "second", "other"]
    assert [node.reward for node in first.nodes] == [0.0, 1.0, 1.0]
    assert [node.parent for node in first.nodes] == [-1, 0, -1] and {node.context for node in first.nodes} == {-1}
    assert [node.text for node in second.nodes] == ["alone"]


@pytest.mark.parametrize(
    "change, words",
    [
        ({"input": None}, "lacks `input`"),
        ({"output": 3}, "`output` has to be a text"),
        ({"score": None}, "lacks `score`"),
        ({"score": "high"}, "`score` has to be a number"),
        ({"step": 1.5}, "`step` has to be an integer"),
    ],
)
def test_a_line_that_is_wrong_is_named(tmp_path, change, words):
    path = tmp_path / "dump.jsonl"
    path.write_text(json.dumps(LINE) + "\n" + json.dumps(LINE | change) + "\n")
    with pytest.raises(GraphError, match=words) as caught:
        import_dump(path, CharacterTokenizer())
    assert "line 2" in str(caught.value)


def test_an_empty_turn_needs_an_end_token_and_a_folder_needs_files(tmp_path):
    path = tmp_path / "dump.jsonl"
    path.write_text(json.dumps(LINE | {"output": ""}) + "\n")
    tokenizer = CharacterTokenizer()
    assert import_dump(path, tokenizer)[0].nodes[0].action == [1]
    tokenizer.eos_token_id = None
    with pytest.raises(GraphError, match="end token"):
        import_dump(path, tokenizer)
    (tmp_path / "none").mkdir()
    with pytest.raises(GraphError, match="rollout_data_dir"):
        import_dump(tmp_path / "none", tokenizer)
    with pytest.raises(GraphError, match=r"use \.jsonl"):
        export_dump(rollout_graphs.GOLDEN, tmp_path / "dump.parquet", Numbers())
