"""Demonstrations for proposers, solvers and judges: what an episode that answers its task becomes, and is played as."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.unit.workers.test_proposer_solver_judge import WORKER, Exam
from verl_hier.environments.base import StepResult
from verl_hier.host.options import build_options
from verl_hier.rollout import Limits
from verl_hier.rollout.transcript import EnvironmentCall, Transcript, TranscriptTurn
from verl_hier.testing.rollout import CharacterTokenizer, roll_out_scripted


def transcript(question: str, *actions: str) -> Transcript:
    calls = tuple(EnvironmentCall(action, StepResult("right", 1.0, True)) for action in actions)
    return Transcript(question, StepResult("ready"), (TranscriptTurn(None, "", calls),) if actions else ())


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"solvers": 3, "judge_questions": False},
        {"questions": "task", "evaluator": True, "reward": "comas", "rounds": 2},
    ],
)
def test_what_is_shown_can_be_played(options: dict[str, Any]) -> None:
    made, seen = build_options(WORKER, options), set()
    for word in "abcdefgh":
        texts = WORKER.transcribe(made, transcript(f"what is {word} two", "so <answer>4</answer>"))
        said = iter(texts)
        graph, _ = asyncio.run(
            roll_out_scripted(
                worker=WORKER,
                options=made,
                answer=lambda prompt, sampling: next(said),
                environment=Exam,
                task={"instruction": f"what is {word} two", "answer": "4"},
                n=1,
                tokenizer=CharacterTokenizer(),
                limits=Limits(60, 200, 9000),
            )
        )
        assert next(said, None) is None and all("failure" not in node.extra for node in graph.nodes)
        assert graph.episodes[0].status == "finished" and graph.episodes[0].ret > 0
        seen |= {node.extra["judge"] for node in graph.nodes if node.role == "judge"}
    assert {0.0, 1.0} <= seen, "a judge sees right and wrong answers"


def test_what_cannot_be_shown_is_left_out() -> None:
    with pytest.raises(ValueError, match="no_answer"):
        WORKER.transcribe(build_options(WORKER, {}), transcript("what is one"))
    with pytest.raises(ValueError, match="options"):
        WORKER.transcribe(build_options(WORKER, {"tool": "search"}), transcript("what is one", "x"))
