"""The worker of Memory-R1: its four operations, who reads what, and demonstrations of it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.unit.workers.test_proposer_solver_judge import Exam
from verl_hier.environments.base import StepResult
from verl_hier.errors import HierError
from verl_hier.graph.build_table import build_table
from verl_hier.host.manager import PluginHost
from verl_hier.host.options import build_options
from verl_hier.rollout import Limits
from verl_hier.rollout.transcript import EnvironmentCall, Transcript, TranscriptTurn
from verl_hier.testing.rollout import CharacterTokenizer, roll_out_scripted
from verl_hier_plugins.workers.memory import Bank

WORKER: Any = PluginHost.load({"builtin": True}).spec("worker", "memory")
TASK = {"instruction": "x", "facts": ["ann has a cat", "it is raining", "ann has a dog"], "asked": "which pet has ann"}
OPTIONS = {"pieces": "facts", "question": "asked"}


def play(options: dict[str, Any], *texts: str, task: dict[str, Any] = TASK) -> Any:
    said = iter(texts)
    graph, _ = asyncio.run(
        roll_out_scripted(
            worker=WORKER,
            options=build_options(WORKER, options),
            answer=lambda prompt, sampling: next(said),
            environment=Exam,
            task=task,
            n=1,
            tokenizer=CharacterTokenizer(),
            limits=Limits(30, 200, 5000),
        )
    )
    graph.check()
    assert next(said, None) is None, "every text was spoken"
    return graph


def read(graph: Any) -> list[str]:
    return [node.messages[0].content for node in graph.nodes]


def test_the_answer_comes_from_the_memory_alone():
    graph = play(OPTIONS, "ADD ann has a cat", "noop", "UPDATE 1: ann has a dog", "answer 4")
    assert read(graph) == [
        "memory:  | read: ann has a cat",
        "memory: 1 ann has a cat | read: it is raining",
        "memory: 1 ann has a cat | read: ann has a dog",
        "memory: 1 ann has a dog | which pet has ann",
    ]
    assert [(node.role, node.level) for node in graph.nodes] == [("manager", 0)] * 3 + [("answerer", 1)]
    assert all(node.context == -1 for node in graph.nodes), "each piece has a context of its own"
    assert graph.episodes[0].success and graph.episodes[0].ret == 1.0
    table = build_table([graph])
    assert table["format"].tolist() == [1] * 4 and table["memory_size"].tolist() == [1] * 4
    assert table["operations_done"].tolist() == [1, 0, 1, 0]


@pytest.mark.parametrize("text", ["", "remember it", "UPDATE 7 x", "DELETE", "ADD", "NOOP really", "ADD a; oops"])
def test_what_is_no_operation_is_marked(text):
    graph = play({**OPTIONS, "format_penalty": 0.1}, "ADD one", text or " ", "delete 1", "answer 4")
    assert graph.nodes[1].extra["failure"] == "no_operation" and graph.nodes[1].reward == pytest.approx(-0.1)
    assert [node.extra["format"] for node in graph.nodes] == [1, 0, 1, 1]


def test_the_bank():
    bank = Bank(2, 8)
    assert bank.apply("add one two three") == "add" and bank.apply("ADD: b") == "add" and bank.apply("add c") is None
    assert bank.shown("", 9) == "1 one two  2 b" and bank.shown("b", 1) == "2 b"
    assert bank.apply("delete 1") == "delete" and bank.apply("update 1 x") is None and bank.apply("update 2") is None
    assert bank.apply("add d") == "add" and bank.shown("", 9) == "2 b 3 d", "a number is never given again"


def test_an_instruction_is_read_in_pieces():
    graph = play({"piece_words": 2}, "add a", "add b", "answer 4", task={"instruction": "one two three"})
    assert read(graph) == ["memory:  | read: one two", "memory: 1 a | read: three", "memory: 1 a 2 b | "]


def test_tasks_without_the_field_are_refused():
    with pytest.raises(HierError, match=r"hier\.worker\.pieces: tasks of this environment have no list 'sessions'"):
        play({"pieces": "sessions"})


def test_what_is_shown_can_be_played():
    call = EnvironmentCall("answer 4", StepResult("right", 1.0, True))
    transcript = Transcript("a b c d e f", None, (TranscriptTurn(None, "", (call,)),))
    options = {"piece_words": 2}
    said = WORKER.transcribe(build_options(WORKER, options), transcript)
    assert said == ["add a b", "update 1 a b c d", "add e f", "answer 4"]
    graph = play(options, *said, task={"instruction": "a b c d e f"})
    assert all(node.valid for node in graph.nodes) and read(graph)[-1] == "memory: 1 a b c d 2 e f | "
    with pytest.raises(ValueError, match="one_action"):
        WORKER.transcribe(build_options(WORKER, options), Transcript("a", None, ()))
