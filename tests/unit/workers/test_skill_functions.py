"""Functions as skills: what is kept, called and shown, and the way from there to the credit of SAGE."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from tests.fixtures.quiz import Quiz
from verl_hier.errors import RecipeError
from verl_hier.graph.build_table import build_table
from verl_hier.host.manager import PluginHost
from verl_hier.host.options import build_options
from verl_hier.testing import Line, roll_out_scripted
from verl_hier.testing.builtin import credit_of
from verl_hier.testing.rollout import CharacterTokenizer
from verl_hier_plugins.environments.python_tool.environment import build
from verl_hier_plugins.environments.python_tool.options import PythonToolOptions
from verl_hier_plugins.workers.skill_functions import NOTHING, SkillFunctionsOptions, read

WORKER: Any = PluginHost.load({"builtin": True}).spec("worker", "skill_functions")
DOUBLE = "<python>import math\ndef double(x):\n    return math.prod([2, x])\ndouble(4)</python>"
RIGHT, WRONG = "<answer>right</answer>", "<answer>no</answer>"
CALLS = "<python>double(5)</python>"


def play(*episodes: list[str], environment: Any = Quiz, task: Any = None, **options: Any) -> Any:
    """One task: in each episode the agent says prepared texts."""
    said = iter([text for texts in zip(*episodes, strict=True) for text in texts])
    graph, _ = asyncio.run(
        roll_out_scripted(
            worker=WORKER,
            options=build_options(WORKER, {"prompt": "{asked}|{skills}", **options}),
            answer=lambda prompt, sampling: next(said),
            environment=environment,
            tokenizer=CharacterTokenizer(),
            task=task,
            n=len(episodes),
        )
    )
    graph.check()
    assert next(said, None) is None, "every text was spoken"
    return graph


def column(graph: Any, name: str) -> list[int]:
    return [node.extra[name] for node in graph.nodes]


def test_a_function_of_one_question_helps_with_the_next():
    graph = play([DOUBLE, RIGHT, CALLS, RIGHT, RIGHT])
    assert [node.segment for node in graph.nodes] == [0, 0, 1, 1, 2]
    assert [node.context for node in graph.nodes] == [-1, 0, -1, 2, -1], "each question has a new context"
    kept = "import math\ndef double(x):\n    return math.prod([2, x])"
    assert [node.messages[0].content for node in graph.nodes][::2] == ["question 0|none", f"question 1|{kept}",
                                                                         f"question 2|{kept}"]  # fmt: skip
    assert column(graph, "skill_made") == [1, 0, 0, 0, 0] and column(graph, "skill_used") == [0, 0, 1, 0, 0]
    assert column(graph, "skill_sources") == [0, 0, 0, 1, 0] and column(graph, "question_solved") == [0, 1, 0, 1, 1]


def test_a_skill_that_did_not_help_has_earned_nothing():
    graph = play([DOUBLE, RIGHT, CALLS, WRONG, RIGHT])
    assert column(graph, "skill_sources") == [0] * 5 and column(graph, "question_solved") == [0, 1, 0, 0, 1]


@pytest.mark.parametrize(
    "script", [DOUBLE.replace("double(4)", "error"), DOUBLE.replace("double", "f" * 99), "<python>def double(</python>"]
)
def test_what_failed_is_too_long_or_is_no_python_is_not_kept(script):
    graph = play([script, RIGHT, CALLS, RIGHT, RIGHT], longest=99)
    assert not any(column(graph, "skill_made")) and not any(column(graph, "skill_used"))


def test_a_function_is_used_within_its_question_without_a_reward_and_newly_defined_it_is_another():
    graph = play([DOUBLE, CALLS, RIGHT, DOUBLE, CALLS, RIGHT, RIGHT])
    assert column(graph, "skill_made") == [1, 0, 0, 1, 0, 0, 0] and not any(column(graph, "skill_used"))


def test_a_library_that_is_full_takes_new_versions_alone():
    other = "<python>def triple(x):\n    return 3 * x</python>"
    graph = play([DOUBLE, other, DOUBLE, RIGHT, RIGHT, RIGHT], skills=1)
    assert column(graph, "skill_made") == [1, 0, 1, 0, 0, 0]


def test_neither_a_script_nor_an_answer():
    graph = play(["right", RIGHT, RIGHT], format_penalty=0.5)
    first = graph.nodes[0]
    assert not first.valid and first.extra["failure"] == "no_action" and first.extra["format"] == 0
    assert first.reward == 1.0 - 0.5


@pytest.mark.parametrize("code", ["(" * 5000, "x = '\0'", "9" * 9000, "x" * 20_001, "", "@cached\ndef f(): pass"])
def test_scripts_that_leave_nothing(code):
    assert read(code).functions == {} and (code.startswith("@") or read(code) == read("") == NOTHING)


def test_functions_that_a_function_calls_come_along():
    first = "<python>def one(): return 1\ndef two(): return one() + one()</python>"
    task = {"instruction": "What is 1 + 1?", "family": "arithmetic", "answer": "2"}
    texts = [first, "<answer>2</answer>", "<python>two()</python>", "<answer>2</answer>"]
    options = PythonToolOptions(chain=2)
    graph = play(texts, environment=lambda: build(options), task={**task, "next": [task]})
    # The observation of the last call: the tool has run both functions.
    assert graph.nodes[3].messages[-1].content == "2" and column(graph, "skill_used") == [0, 0, 1, 0]
    assert graph.episodes[0].success and graph.episodes[0].ret == 2.0


def test_the_way_to_the_credit_of_sage():
    helped, alone = [DOUBLE, RIGHT, CALLS, RIGHT, RIGHT], [CALLS, RIGHT, CALLS, RIGHT, WRONG]
    table = build_table([play(helped, alone)])
    credit = credit_of("sage", table)
    # The first two questions have earned 2 (solved with a skill, or with one that helped) and 1, the third one 1 and 0.
    ahead = np.asarray(table["episode"]) == 0
    np.testing.assert_allclose(credit, np.where(ahead, 1.0, -1.0) * 2**-0.5, rtol=1e-5)
    plain = credit_of("sage", table, used_reward=0.0, made_reward=0.0)
    assert [round(value, 3) for value in plain[np.asarray(table["segment"]) < 2]] == [0.0] * 8


def test_a_world_that_asks_one_question_is_refused():
    first = Line().reset({}, 0)
    with pytest.raises(RecipeError, match=r"hier\.environment\.chain: .* take python_tool with `chain: 2`"):
        WORKER.fits(SkillFunctionsOptions(), first)
