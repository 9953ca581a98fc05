"""The worker of proposers, solvers and judges: who speaks, what is a question, and who earns what."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from verl_hier.cli.main import main
from verl_hier.credit.estimate import estimate
from verl_hier.environments.base import Environment, StepResult
from verl_hier.errors import HierError
from verl_hier.graph.build_table import build_table
from verl_hier.host.manager import PluginHost
from verl_hier.host.options import build_options
from verl_hier.rollout import Limits, Request, Rollout
from verl_hier.rollout.roles import Roles
from verl_hier.testing import rollout as kit
from verl_hier.testing.builtin import credit_of
from verl_hier.testing.rollout import CharacterTokenizer, SideBySide, roll_out_scripted
from verl_hier_plugins.estimators.mae import MAEOptions, role_rewards
from verl_hier_plugins.workers.proposer_solver_judge.guards import fault_of, likeness, score_of
from verl_hier_plugins.workers.proposer_solver_judge.rewards import Question, proposer_reward

HOST = PluginHost.load({"builtin": True})
WORKER: Any = HOST.spec("worker", "proposer_solver_judge")
ASKED = "<question>what is two plus two</question>"


class Exam(Environment):
    """Looks things up, and takes one answer."""

    def reset(self, task, seed):
        return StepResult("ready", info={"won": False})

    def step(self, action):
        if action.startswith("search"):
            return StepResult(f"found {action[7:]}", info={"won": False})
        right = action == "answer 4"
        return StepResult("right" if right else "wrong", float(right), True, info={"won": right})


def play(options: dict[str, Any], *texts: str) -> Any:
    said = iter(texts)
    task = {"instruction": "what is three plus one", "answer": "4"}
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


def spoke(graph: Any) -> list[tuple[str, int, float]]:
    return [(node.agent, node.plan, round(node.reward, 6)) for node in graph.nodes]


def table_of(graph: Any) -> Any:
    table = build_table([graph])
    HOST.hook.hier_table_ready(table=table, step=1)
    return table


def test_mae_in_one_episode():
    answers = ("<answer>4</answer>", "<answer>5</answer>")
    graph = play({}, ASKED, "<score>8.2</score>", *answers, "<score>5.5</score>", "<score>1</score>")
    # Quality .8, answers .5 and 0: (.8 + .75 + 1) / 3, and half the score plus half the form.
    assert spoke(graph) == [
        ("proposer", -1, 0.85),
        ("judge", 0, 1.0),
        ("solver 1", 0, 0.75),
        ("solver 2", 0, 0.5),
        ("judge", 2, 1.0),
        ("judge", 3, 1.0),
    ]
    assert graph.episodes[0].status == "finished" and graph.episodes[0].success is None
    table = table_of(graph)
    assert table["judge"].round(6).tolist() == [0.8, 0.8, 0.5, 0.0, 0.5, 0.0]
    assert table.texts["question"].tolist() == ["what is two plus two", *[None] * 5]
    # What the worker has paid is what the estimator takes from the columns.
    np.testing.assert_allclose(role_rewards(table, MAEOptions()), table["reward"])


@pytest.mark.parametrize(
    ("text", "told", "failure"),
    [
        ("two plus two", [], "no_question"),
        ("<question>two</question>", [], "short_question"),
        (f"<question>{'long ' * 500}</question>", [], "long_question"),
        ("<question>What is two, plus two?</question>", ["what is two plus two"], "copied_question"),
    ],
)
def test_what_is_no_question_earns_nothing_and_is_not_answered(text, told, failure):
    said = iter([text])
    graph = _told(build_options(WORKER, {}), told, lambda prompt, sampling: next(said))
    (node,) = graph.nodes
    assert node.extra["failure"] == failure and node.extra["format"] == 0 and node.reward == 0.0
    assert "question" not in node.extra
    # A step without one sound question, such as the first one of an untrained model, is credited like any other.
    assert estimate(HOST.specs("estimator")["mae"], table_of(graph)).values.tolist() == [0.0]


def _told(options: Any, questions: list[str], answer: Any) -> Any:
    """One episode whose worker was told questions of a pool."""
    tokenizer = CharacterTokenizer()
    setup = kit._setup(kit.ScriptedPolicy(tokenizer, answer), tokenizer, Exam, 0, Limits(30, 3000, 9000), None, None)
    request = Request(
        task={"instruction": "x", "answer": "4"}, identity={"uid": "u"}, n=1, told={"questions": questions}
    )
    made = Rollout(request, setup, lambda: WORKER.factory(options), Roles.of(WORKER, options))
    graph = asyncio.run(kit.roll_out(made, SideBySide()))
    assert graph.request["told"] == {"questions": questions} and Request.of(graph, {}).told == {"questions": questions}
    return graph


def test_a_proposer_reads_a_question_of_the_pool():
    said = iter([ASKED, "<score>9</score>", *["<answer>4</answer>"] * 2, *["<score>9</score>"] * 2])
    graph = _told(build_options(WORKER, {}), ["how many legs has a cow"], lambda prompt, sampling: next(said))
    assert graph.nodes[0].messages[0].content == "propose: how many legs has a cow"


def test_answers_of_a_task_are_discussed_and_the_evaluator_gains_what_the_solver_loses():
    options = {"questions": "task", "evaluator": True, "reward": "comas", "solvers": 1, "rounds": 2}
    graph = play(
        options, "<answer>5</answer>", "too much", "<score>1</score>", "<answer>4</answer>", "good", "no verdict"
    )
    assert spoke(graph) == [
        ("solver 1", -1, 0.0), ("evaluator 1", 0, 1.0), ("judge", 0, 0.0),
        ("solver 1", -1, 0.0), ("evaluator 1", 3, 1.0), ("judge", 3, -1.0),
    ]  # fmt: skip
    assert graph.nodes[3].messages[0].content == "solver 1: 5 too much"
    table = table_of(graph)
    rewards = credit_of("comas", table, scorer="judge")
    assert np.isfinite(rewards).all() and table["judge"].tolist() == [0.0] * 6


def test_search_self_play_is_zero_sum_and_verified():
    options = {
        "answers_by": "match", "judge_questions": False, "tool": "search", "reward": "zero_sum",
        "proposer_prompt": "ask for {truth}", "verify_prompt": "{question} | {evidence}",
    }  # fmt: skip
    graph = play(
        options, "search two", ASKED, "<answer>4</answer>", "search sum", "<answer>4</answer>", "<answer>7</answer>"
    )
    assert spoke(graph) == [
        ("proposer", -1, 0.0), ("proposer", -1, 0.5), ("verifier", -1, 0.0),
        ("solver 1", 1, 0.0), ("solver 1", 1, 1.0), ("solver 2", 1, 0.0),
    ]  # fmt: skip
    assert graph.nodes[0].messages[0].content == "ask for 4"
    assert graph.nodes[2].messages[0].content == "what is two plus two | found two"
    graph = play(options, ASKED, "<answer>9</answer>")
    assert graph.nodes[1].extra["failure"] == "question_not_verified" and graph.nodes[0].reward == 0.0


def test_an_evaluation_answers_the_task_of_the_environment():
    said = iter(["<answer>4</answer>"])
    tokenizer, options = CharacterTokenizer(), build_options(WORKER, {})
    setup = kit._setup(
        kit.ScriptedPolicy(tokenizer, lambda prompt, sampling: next(said)),
        *(tokenizer, Exam, 0, Limits(30, 300, 9000), None, None),
    )
    request = replace(Request(task={"instruction": "1 + 3"}, identity={"uid": "u"}, n=1), validate=True)
    made = Rollout(request, setup, lambda: WORKER.factory(options), Roles.of(WORKER, options))
    graph = asyncio.run(kit.roll_out(made, SideBySide()))
    assert [node.role for node in graph.nodes] == ["solver"] and graph.episodes[0].success


CASES = Path(__file__).parents[2] / "conformance" / "cases" / "hierarchical_grpo.json"


def compared(case: dict[str, Any]) -> bool:
    """Whether a proposer with solvers plays the case: one proposer and one solver at least in every episode."""
    agents = [[trace["agent"] for trace in episode] for episode in case["input"]["episodes"]]
    return all(each[0] == "proposer" and set(each[1:]) == {"solver"} for each in agents)


@pytest.mark.parametrize("case", [case for case in json.loads(CASES.read_text())["cases"] if compared(case)])
def test_hierarchical_grpo_from_a_proposer_with_solvers(case):
    """Each episode has its own number of solvers; they earn what they say, and the proposer what the case says."""
    graphs = []
    for episode in case["input"]["episodes"]:
        options = {"solvers": len(episode) - 1, "judge_questions": False, "answers_by": "match", "reward": "zero_sum"}
        texts = [f"<answer>{4 if trace['reward'] else 5}</answer>" for trace in episode[1:]]
        graph = play(options, ASKED, *texts)
        assert [node.reward for node in graph.nodes[1:]] == [trace["reward"] for trace in episode[1:]]
        graph.nodes[0].reward = episode[0]["reward"]
        for node, trace in zip(graph.nodes, episode, strict=True):
            node.trained = trace["trained"]
        graphs.append(graph)
    table = build_table(graphs)
    # The episodes of a case are those of one task.
    table.turns["group"] = np.zeros(len(table), np.int64)
    values = iter(credit_of("hierarchical_grpo", table, episode_agents=case["input"]["episode_agents"]).tolist())
    for episode, expected in zip(case["input"]["episodes"], case["output"]["advantages"], strict=True):
        found = [next(values) for _ in episode]
        assert found == pytest.approx([0.0 if value is None else value for value in expected], abs=2e-5)


def test_rewards_of_proposers():
    half, none = Question(True, 0.9, (1.0, 0.0)), Question(True, 0.9, (0.0, 0.0))
    assert proposer_reward("learnable", half, 0.7) == 1.0 and proposer_reward("learnable", none, 0.7) == 0.0
    assert proposer_reward("zero_sum", none, 0.7) == 1.0 and proposer_reward("mae", half, 0.95) == pytest.approx(
        1.9 / 3
    )
    assert proposer_reward("mae", Question(False, 1.0, (0.0,)), 0.7) == 0.0


@pytest.mark.parametrize(
    ("lines", "noted"),
    [
        ([], False),
        (["hier.worker.verify_prompt=null"], True),
        (["hier.worker.verify_prompt=null", "hier.worker.solvers=2", "hier.worker.answers_by=judge"], True),
        (["hier.worker.verify_prompt=null", "hier.worker.reward=learnable"], False),
        (["hier.worker.verify_prompt=null", "hier.worker.reward=mae"], False),
    ],
)
def test_pay_for_what_nobody_can_answer_is_noted_before_a_run(monkeypatch, capfd, lines, noted):
    """Only a verifier keeps a proposer from earning most with a question that has no answer."""
    monkeypatch.setattr(sys, "argv", ["verl-hier", "check", "search_self_play_search", *lines])
    with pytest.raises(SystemExit) as end:
        main()
    out = capfd.readouterr().out
    said = [line for line in out.splitlines() if line.startswith("note: hier.worker.verify_prompt: ")]
    assert (end.value.code or 0, len(said)) == (0, int(noted)), out
    assert all("zero_sum pays a proposer most for a question that nobody can answer" in line for line in said)


def test_guards_and_verdicts():
    assert fault_of("a b c", "", 3, 10, 0.9) is None and fault_of(None, "", 3, 10, 0.9) == "no_question"
    assert likeness("a b", "b c") == pytest.approx(1 / 3) and likeness("", "") == 0.0
    assert score_of("10", 1, 10) == 1.0 and score_of("11", 1, 10) is None and score_of("nan", 1, 10) is None
    assert score_of("9" * 1000, 1, 10) is None and score_of(None, 1, 10) is None


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"policies": {"jugde": "x"}}, r"policies: there is no role 'jugde' \(did you mean 'judge'\?\)"),
        ({"policies": {"judge": "big"}}, "the worker asks for the policy 'big'; this run has"),
        ({"lowest": 3, "highest": 3}, "highest must be above lowest"),
        ({"questions": "task", "verify_prompt": "{question}"}, "needs no verifier"),
        ({"verify_prompt": "is it right?"}, r"not told the question cannot answer it; write \{question\}"),
        ({"verify_prompt": ""}, r"not told the question cannot answer it; write \{question\}"),
        ({"verify_prompt": "{evidence} {{question}}"}, r"not told the question cannot answer it"),
        ({"verify_prompt": "{question"}, "cannot be read"),
        ({"reward": "comas"}, "comas needs `evaluator: true` and `questions: task`"),
    ],
)
def test_what_cannot_be_played_is_refused_in_a_sentence(options, sentence):
    with pytest.raises(HierError, match=sentence) as refused:
        play(options, ASKED)
    assert "\n" not in str(refused.value)
